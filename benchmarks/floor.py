"""Lower bound of the pause of a hot switch: rebuilds the communicator and copies the state, without a control plane.

Of four gloo ranks two are new and receive the state of the others, as in a hot switch of one of two pods. `benchmarks.__main__`
runs it in separate processes. It prints one JSON list of seconds.
"""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rekindle_training.examples.gpt_model import GPT

RANKS = 4


def main() -> None:
    rounds = int(sys.argv[1])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [context.Process(target=rank_main, args=(rank, store.port, rounds, results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    print(json.dumps(results.get()))
    for process in ranks:
        process.join()


def rank_main(rank: int, port: int, rounds: int, results: "mp.SimpleQueue[list[float]]") -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    model = GPT()
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    _join(store, 0, rank)
    seconds = []
    for generation in range(1, rounds + 1):
        dist.barrier()
        began = time.perf_counter()
        dist.destroy_process_group()
        _join(store, generation, rank)
        _copy(model, rank)
        dist.barrier()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        results.put(seconds)


def _join(store: dist.Store, generation: int, rank: int) -> None:
    prefixed = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=RANKS)


def _copy(model: torch.nn.Module, rank: int) -> None:
    """Copies all parameters three times, which is the size of AdamW's state."""
    for _ in range(3):
        for parameter in model.parameters():
            if rank < RANKS // 2:
                dist.send(parameter.data, rank + RANKS // 2)
            else:
                dist.recv(parameter.data, rank - RANKS // 2)


if __name__ == "__main__":
    main()
