"""`python -P -m benchmarks.vote`: measures the agreement of a step, in microseconds, and one gloo all_reduce of the same ranks.

Both are measured in turns by the same processes. Jobs that are too large for a machine are computed from the time of a hop here.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from rekindle_training.adapter.communicator import Communicator, warm
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate, Join
from rekindle_wire.training_pb2 import Rebuild

CONTEXT = multiprocessing.get_context("forkserver")
CHUNKS = 21
"""Number of figures of each row. The first one is dropped."""
CHUNK_SECONDS = 0.1
"""Approximate duration in seconds of the votes of one figure."""
LIMIT = 300


@dataclass(frozen=True)
class Shape:
    pods: int
    ranks_per_pod: int

    @property
    def ranks(self) -> int:
        return self.pods * self.ranks_per_pod


ONE_POD = [Shape(1, ranks) for ranks in (2, 4, 8, 16, 32, 64)]
PODS = [Shape(2, 1), Shape(2, 2), Shape(4, 2), Shape(8, 2)]
LARGE = Shape(512, 8)


@dataclass(frozen=True)
class Found:
    vote: list[float]
    all_reduce: list[float]


def rank_main(rank: int, shape: Shape, port: int, memory: str, answers: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    variables = {
        "REKINDLE_PROCESS": f"pod-{rank // shape.ranks_per_pod}/{rank}",
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{shape.ranks}",
        "LOCAL_WORLD_SIZE": f"{shape.ranks_per_pod}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "REKINDLE_POD_MEMORY": f"{os.open(memory, os.O_RDWR)}",
    }
    communicator = Communicator(RankEnvironment.read(variables), Gate())
    warm()
    communicator.watch()
    communicator.join(Join(1, Rebuild(store_port=port, store_prefix="one", world_size=shape.ranks, timeout_seconds=LIMIT)))
    words, element = count(1), torch.ones(1)

    def vote() -> None:
        communicator.agree(next(words))

    def all_reduce() -> None:
        dist.all_reduce(element)

    found = Found([], [])
    for _ in range(CHUNKS):
        for figures, call in ((found.vote, vote), (found.all_reduce, all_reduce)):
            figures.append(chunk(call))
    if rank == 0:
        answers.send(found)
    communicator.leave(together=True)


def chunk(call: Callable[[], None]) -> float:
    """Returns the mean duration of a call in microseconds."""
    began = perf_counter()
    call()
    calls = torch.tensor(max(5, int(CHUNK_SECONDS / (perf_counter() - began))))
    dist.broadcast(calls, 0)
    dist.barrier()
    began = perf_counter()
    for _ in range(int(calls)):
        call()
    return (perf_counter() - began) / int(calls) * 1e6


def measure(shape: Shape) -> Found:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    here, there = CONTEXT.Pipe()
    memories = [os.memfd_create(f"pod {pod}") for pod in range(shape.pods)]
    ranks = []
    for rank in range(shape.ranks):
        path = f"/proc/{os.getpid()}/fd/{memories[rank // shape.ranks_per_pod]}"
        ranks.append(CONTEXT.Process(target=rank_main, args=(rank, shape, store.port, path, there), daemon=True))
    for process in ranks:
        process.start()
    try:
        if not here.poll(LIMIT):
            raise TimeoutError(f"{shape} did not answer within {LIMIT} s")
        found: Found = here.recv()
    finally:
        for process in ranks:
            process.join(5)
            process.kill()
        for memory in memories:
            os.close(memory)
    return Found(found.vote[1:], found.all_reduce[1:])


def spread(figures: list[float]) -> tuple[str, str, str]:
    cuts = quantiles(figures, n=20)
    return f"{median(figures):.0f}", f"{cuts[0]:.0f}", f"{cuts[-1]:.0f}"


def counted(found: dict[Shape, Found]) -> str:
    """Returns the computed vote of a large job, in which all pods gather, exchange and broadcast at the same time."""
    gather, hop, exchange = (median(found[shape].vote) for shape in (Shape(1, LARGE.ranks_per_pod), Shape(1, 2), Shape(2, 1)))
    rounds = (LARGE.pods - 1).bit_length()
    total = gather + rounds * exchange + hop
    return (
        f"{LARGE.ranks} ranks in {LARGE.pods} pods of {LARGE.ranks_per_pod}, counted: "
        f"vote of {LARGE.ranks_per_pod} ranks in a pod + {rounds} rounds between pods + hop in a pod = "
        f"{gather:.0f} + {rounds} * {exchange:.0f} + {hop:.0f} = {total:.0f} us (to be reached: 2000)"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    CONTEXT.set_forkserver_preload(["rekindle_training.adapter.communicator"])
    table = Table("us", "vote", "p5", "p95", "all_reduce", "p5", "p95", title=f"{os.cpu_count()} cores")
    found = {}
    for shape in (*ONE_POD, *PODS):
        found[shape] = measure(shape)
        name = f"{shape.ranks} ranks" + (f" in {shape.pods} pods" if shape.pods > 1 else "")
        table.add_row(name, *spread(found[shape].vote), *spread(found[shape].all_reduce))
    Console(width=110).print(table)
    Console(width=110).print(counted(found))


if __name__ == "__main__":
    main()
