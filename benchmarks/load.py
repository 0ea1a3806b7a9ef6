"""Measures the load that an installation bears: `python -P -m benchmarks.load --jobs 1000 --faults 100`.

Temporal is real, on a database file or with `--service` as four services over PostgreSQL. The gateway and the control worker are
real too, and pods answer at once. All training sides run in this process. It registers and attaches the jobs and measures them
idle. It reports faults one by one and many at once, lets many jobs lose a process at once, and kills the gateway, the control
worker and each process of Temporal. It prints a table in Markdown with the targets. It uses loopback only, and ends within
`--limit`.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

from temporalio.client import Client

from benchmarks.installations import installation, persistently, register
from benchmarks.load_clients import ScriptedClient, all_attached, scripted
from benchmarks.load_control import PODS, RANKS_PER_POD
from rekindle import ids
from rekindle.cli.stack import Member, Stack
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.job import Capability, Job, JobId, SubHealthStrategy
from rekindle.temporal import connect
from simulators.kubernetes.binaries import built
from simulators.temporal_cluster.__main__ import MODULE, PROGRAMS, cluster
from simulators.temporal_cluster.configuration import SERVICES

SINGLES = 5
"""Number of faults that are reported one by one, and of those while all clients reconnect."""

AT_ONCE = 32
"""Number of concurrent registrations."""

TICKS = os.sysconf("SC_CLK_TCK")


def attach_goal(jobs: int) -> str:
    return "10 s" if jobs <= 1000 else "120 s" if jobs <= 10_000 else "-"


@dataclass
class Table:
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, measured: str, reach: str = "-") -> None:
        self.rows.append((what, measured, reach))
        print(f"{what}: {measured}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        lines = [("what", "measured", "to be reached"), ("---", "---", "---"), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass
class Load:
    """A running installation and the clients of its jobs."""

    members: Mapping[str, Member]
    """Processes by name, those of Temporal included."""
    temporal: Client
    clients: list[ScriptedClient]
    table: Table
    ill: int = 0
    """Number of jobs that already had their fault, counted from the first job."""

    @property
    def jobs(self) -> int:
        return len(self.clients)

    # ---- coming and being idle

    async def register(self) -> None:
        began, few = time.monotonic(), asyncio.Semaphore(AT_ONCE)

        async def one(job_id: str) -> None:
            async with few:
                await register(self.temporal, a_job(job_id))

        await asyncio.gather(*(one(client.job_id) for client in self.clients))
        self._rate("registered", began)

    async def attach(self) -> None:
        began = time.monotonic()
        for client in self.clients:
            client.start()
        await all_attached(self.clients)
        self._rate("attached", began)
        began, few = time.monotonic(), asyncio.Semaphore(AT_ONCE)

        async def one(client: ScriptedClient) -> None:
            async with few:
                await client.first_step()

        await asyncio.gather(*(one(client) for client in self.clients))
        self._rate("first steps told", began)

    def _rate(self, what: str, began: float) -> None:
        seconds = time.monotonic() - began
        self.table.add(what, f"{seconds:.1f} s, {self.jobs / seconds:.0f} jobs/s")

    async def idle(self, seconds: float) -> None:
        names = list(self.members)
        before = {name: self._usage(name)[0] for name in names}
        began = time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        for name in names:
            cpu, memory = self._usage(name)
            self.table.add(f"idle: {name}", f"{(cpu - before[name]) / took:.0%} of a core, {memory:.0f} MB")

    def _usage(self, name: str) -> tuple[float, float]:
        """Returns the CPU seconds and resident megabytes of a process."""
        process = self.members[name].process
        assert process
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        return (int(stat[11]) + int(stat[12])) / TICKS, pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    # ---- faults

    async def singles(self) -> list[float]:
        """Reports one fault after the other, each on another job, and returns the seconds to the first orders."""
        seconds = [await self._fault(client) for client in self._healthy(SINGLES)]
        await self._verdicts()
        self.table.add(f"1 fault to its first order, {len(seconds)} times", spread(seconds), "60 ms, p95 100 ms")
        return seconds

    async def burst(self, count: int) -> None:
        began = time.monotonic()
        seconds = await asyncio.gather(*(self._fault(client) for client in self._healthy(count)))
        await self._verdicts()
        reach = "p95 5 s" if count == 100 else "-"
        verdicts = f"all verdicts {time.monotonic() - began:.1f} s"
        self.table.add(f"{count} faults at once to first orders", f"{spread(seconds)}; {verdicts}", reach)

    async def processes(self, count: int) -> None:
        """Reports lost processes on `count` streams at the same moment."""
        began = time.monotonic()
        seconds = await asyncio.gather(*(self._process_fault(client) for client in self._healthy(count)))
        await self._verdicts()
        verdicts = f"all verdicts {time.monotonic() - began:.1f} s"
        self.table.add(f"{count} process faults at once to first orders", f"{spread(seconds)}; {verdicts}", "p95 5 s")

    async def _process_fault(self, client: ScriptedClient) -> float:
        """Reports a fault as a manager does. Returns the seconds from the report to the first order at the client."""
        began = time.monotonic()
        telling = asyncio.create_task(client.report_fault())
        await self._ordered(client)
        await telling
        assert client.first_order_at is not None
        return client.first_order_at - began

    @staticmethod
    async def _ordered(client: ScriptedClient) -> None:
        while client.first_order_at is None:
            await asyncio.sleep(0.005)

    def _healthy(self, count: int) -> list[ScriptedClient]:
        chosen = self.clients[self.ill : self.ill + count]
        assert len(chosen) == count, f"more jobs are needed than {self.jobs}"
        self.ill += count
        return chosen

    async def _fault(self, client: ScriptedClient) -> float:
        """Reports a fault as the watcher does. Returns the seconds from the report to the first order at the client."""
        began = time.monotonic()
        job = self.temporal.get_workflow_handle(ids.job_workflow(client.job_id))
        report = FaultReport(faults=(sub_health(client.job_id),))
        telling = asyncio.create_task(
            persistently(lambda: job.execute_update(ids.Updates.REPORT_FAULTS, report, id="sub-health", result_type=Receipt))
        )
        await self._ordered(client)
        await telling
        assert client.first_order_at is not None
        return client.first_order_at - began

    async def _verdicts(self) -> None:
        """Waits until each fault has a completed recovery."""
        kinds = f"'{ids.Workflows.HOT_SWITCH}', '{ids.Workflows.IN_PLACE}'"
        query = f"WorkflowType IN ({kinds}) AND ExecutionStatus = 'Completed'"
        while (await self.temporal.count_workflows(query)).count < self.ill:
            await asyncio.sleep(0.2)

    # ---- deaths

    async def gateway_dies(self, single: float) -> None:
        sent_away, began = self._sent_away(), time.monotonic()
        self._kill("gateway")
        while any(client.attached.is_set() for client in self.clients):
            await asyncio.sleep(0.01)
        (waiting,) = self._healthy(1)
        at_once = asyncio.create_task(self._fault(waiting))
        meanwhile = asyncio.create_task(self._faults_meanwhile())
        while not any(client.attached.is_set() for client in self.clients):
            await asyncio.sleep(0.01)
        first = time.monotonic() - began
        await all_attached(self.clients)
        back = time.monotonic() - began
        late, seconds = await at_once, await meanwhile
        await self._verdicts()
        words = f"{back:.1f} s (the first after {first:.1f} s); {self._sent_away() - sent_away} sent away"
        self.table.add("gateway killed: all attached again", words, attach_goal(self.jobs))
        self.table.add("a fault at its death, to the first order", f"{late:.2f} s", f"{first + single + 1:.2f} s")
        self.table.add("faults meanwhile, to first orders", spread(seconds), f"{single + 1:.2f} s")

    def _sent_away(self) -> int:
        return sum(client.sent_away for client in self.clients)

    async def _faults_meanwhile(self) -> list[float]:
        """Reports faults on jobs that have reconnected while others still do. Returns the seconds to the first orders."""
        seconds = []
        for client in self._healthy(SINGLES):
            await client.attached.wait()
            seconds.append(await self._fault(client))
        return seconds

    async def dies(self, name: str) -> None:
        """Kills a process, and reports a fault at the same moment."""
        self._kill(name)
        (client,) = self._healthy(1)
        seconds = await self._fault(client)
        await persistently(self._verdicts)
        self.table.add(f"{name} killed: next first order", f"{seconds:.1f} s", "5 s")

    def _kill(self, name: str) -> None:
        process = self.members[name].process
        assert process
        process.kill()


def a_job(job_id: str) -> Job:
    return Job(
        id=JobId(job_id),
        name=job_id,
        pods=PODS,
        ranks_per_pod=RANKS_PER_POD,
        capabilities=(Capability.REPLACE_RANK_0,),
        sub_health=SubHealthStrategy.HOT_SWITCH,
    )


def sub_health(job_id: str) -> Fault:
    return Fault(
        id=f"sub-health of {job_id}",
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(1,),
        ranks=(2, 3),
        node="node-1",
        code="80E18005",
        message="NPU link is degraded",
        seen_at=datetime.now(UTC),
        source="benchmark",
    )


def spread(seconds: Sequence[float]) -> str:
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [*seconds] * 19
    return f"median {median(seconds):.2f} s, p95 {cuts[-1]:.2f} s, max {max(seconds):.2f} s"


@asynccontextmanager
async def a_service(directory: Path) -> AsyncIterator[Stack]:
    """Runs Temporal's services over PostgreSQL, whose user must be able to enter the directory."""
    directory.chmod(0o755)
    (directory / "logs").mkdir()
    binaries = await asyncio.to_thread(built, PROGRAMS, MODULE, print)
    async with cluster(directory, binaries) as service:
        yield service


async def measure(options: argparse.Namespace, directory: Path) -> Table:
    async with asyncio.timeout(options.limit), AsyncExitStack() as processes:
        service = await processes.enter_async_context(a_service(directory)) if options.service else None
        address = service.addresses.temporal if service else ""
        stack = await processes.enter_async_context(installation(directory, temporal=address))
        of_temporal = service.members if service else {"temporal": stack.members["temporal"]}
        temporal = await connect(stack.addresses.temporal)
        jobs = [f"job-{number}" for number in range(options.jobs)]
        clients = await processes.enter_async_context(scripted(stack.addresses.gateway, jobs))
        load = Load({**of_temporal, **stack.members}, temporal, clients, Table())
        await load.register()
        await load.attach()
        await load.idle(options.idle)
        single = median(await load.singles())
        for count in sorted({10, options.faults}):
            await load.burst(count)
        await load.processes(options.faults)
        await load.gateway_dies(single)
        for name in ("control", *of_temporal):
            await load.dies(name)
        return load.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="registered and attached jobs (default: 1000)")
    parser.add_argument("--faults", type=int, default=100, help="the largest number of faults at once (default: 100)")
    parser.add_argument("--idle", type=float, default=20, help="seconds of looking at idle processes (default: 20)")
    parser.add_argument("--service", action="store_true", help="Temporal's services over PostgreSQL; built the first time")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for all of it (default: 1800)")
    options = parser.parse_args()
    deaths = 2 + (len(SERVICES) + 1 if options.service else 1)
    needed = 2 * SINGLES + sum({10, options.faults}) + options.faults + deaths
    if options.jobs < needed:
        parser.error(f"--jobs: {options.jobs} are too few, with {options.faults} faults at once {needed} are needed")
    with tempfile.TemporaryDirectory(prefix="rekindle-load-") as directory:
        table = asyncio.run(measure(options, Path(directory)))
    kind = "Temporal service over PostgreSQL" if options.service else "embedded Temporal server"
    print(f"\n{options.jobs} jobs, {os.cpu_count()} cores, {kind}\n\n{table}")


if __name__ == "__main__":
    main()
