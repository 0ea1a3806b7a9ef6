"""`python -P -m benchmarks.manager_load`: measures a manager with a thousand ranks, which answer as ranks do and do not train.

The manager's procedures run here, its ranks in other processes of the same machine. Printed are the manager's processor time and
the elapsed time, which is mostly the ranks' work.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from rekindle_training import wire
from rekindle_training.manager import procedures, repair
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.service import RanksService
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import Heartbeat, Held, Hello, ManagerMessage, Paused, RankMessage, Standing, Stepped
from rekindle_wire.training_pb2_grpc import RanksStub, add_RanksServicer_to_server

PROCESSES = 2
"""Number of processes that simulate the ranks."""
OWN_STATE = 11_000
"""Bytes of state that each rank has of its own: three generators and a position."""
HEARTBEAT_SECONDS = 1.0
BEATS_SECONDS = 5.0
REPLACED = 8
LIMIT = 120.0


class Rank:
    """Simulated rank that answers every message of the manager at once."""

    def __init__(self, number: int) -> None:
        self._number, self._generation, self._step = number, 0, 5
        self._says: asyncio.Queue[RankMessage] = asyncio.Queue()

    async def run(self, port: int) -> None:
        options = [*wire.CLIENT, ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            async for message in RanksStub(channel).Join(self._speak(), wait_for_ready=True):
                if (answer := self._answer(message)) is not None:
                    answer.generation = self._generation
                    self._says.put_nowait(answer)

    async def _speak(self) -> AsyncIterator[RankMessage]:
        name = f"process-{self._number}"
        yield RankMessage(hello=Hello(rank=self._number, role="worker", process=name, protocol=PROTOCOL))
        while True:
            try:
                yield await asyncio.wait_for(self._says.get(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield RankMessage(generation=self._generation, heartbeat=Heartbeat(step=self._step))

    def _answer(self, message: ManagerMessage) -> RankMessage | None:
        match message.WhichOneof("kind"):
            case "rebuild":
                self._generation = message.generation
                return RankMessage(stepped=Stepped(step=self._step))
            case "hold":
                return RankMessage(held=Held(step=self._step, total=1000))
            case "pause_at":
                return RankMessage(paused=Paused(step=self._step, own_state=os.urandom(OWN_STATE)))
            case "resume":
                return RankMessage(stepped=Stepped(step=self._step))
            case "stand":
                return RankMessage(standing=Standing(step=self._step))
            case _:
                return None


def speak_for(numbers: list[int], port: int) -> None:
    async def main() -> None:
        await asyncio.gather(*(Rank(number).run(port) for number in numbers))

    asyncio.run(main())


async def measure(ranks: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Returns for each procedure the seconds of this process, and the elapsed seconds, in each round."""
    found: dict[str, list[tuple[float, float]]] = {}

    async def timed(name: str, procedure: Awaitable[Any]) -> Any:
        clock, own = time.perf_counter(), time.process_time()
        result = await procedure
        found.setdefault(name, []).append((time.process_time() - own, time.perf_counter() - clock))
        return result

    membership, store = Membership(ranks), Store(1, "x", None)  # no rank uses it
    server = grpc.aio.server(options=list(wire.SERVER))
    add_RanksServicer_to_server(RanksService(membership), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    context = multiprocessing.get_context("spawn")
    shares = [list(range(share, ranks, PROCESSES)) for share in range(PROCESSES)]
    speakers = [context.Process(target=speak_for, args=(share, port), daemon=True) for share in shares]
    for speaker in speakers:
        speaker.start()
    await timed("all say hello", membership.until(lambda: membership.ready_to_start))
    await timed("start", procedures.rebuild(membership, store, dict(membership.starting), Plan(), LIMIT))
    await timed(f"{BEATS_SECONDS:g} s of heartbeats", asyncio.sleep(BEATS_SECONDS))
    replaced = range(REPLACED)
    for _ in range(rounds):
        standstill = await timed("pause", procedures.pause(membership))
        transfers = procedures.sources(range(REPLACED, ranks), replaced, standstill.replicas)
        plan = Plan(standstill.step, transfers, standstill.own_states)
        await timed(
            f"rebuild, {REPLACED} ranks replaced", procedures.rebuild(membership, store, dict(membership.members), plan, LIMIT)
        )
        await procedures.pause(membership)
        await timed("resume", procedures.resume(membership))
        standing = await timed("all say where they stand", procedures.stand(membership))
        await timed("repair", procedures.rebuild(membership, store, dict(membership.members), repair.plan(standing), LIMIT))
    for speaker in speakers:
        speaker.kill()
    await server.stop(5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = asyncio.run(measure(options.ranks, options.rounds))
    table = Table("seconds", "manager, median", "worst", "clock, median", "worst", "n", title=f"{options.ranks} ranks")
    for name, times in found.items():
        own, clock = zip(*times, strict=True)
        table.add_row(name, *(f"{value:.3f}" for value in (median(own), max(own), median(clock), max(clock))), str(len(times)))
    Console(width=110).print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB, {len(list(Path('/proc/self/fd').iterdir()))} descriptors left, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
