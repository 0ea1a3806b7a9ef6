"""Measures the cost and latency of the watcher on a large cluster: `python -P -m benchmarks.watcher`.

The API server and etcd are real, without controllers, with 10,000 pods of 1,000 jobs and 5,000 nodes
(`benchmarks.large_cluster`). The watcher is a process of its own, as in an installation, under its own account. Its updates are
acknowledged at once, so that Temporal is not measured. The lower bound is a process that sends the same requests, parses every
answer, and keeps nothing.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from activities.clusters.api_server import BOOKMARK, Api, Object
from benchmarks import large_cluster
from benchmarks.large_cluster import Etcd, Size, Written
from rekindle.errors import NotFound
from simulators.kubernetes.binaries import control_plane_binaries
from simulators.kubernetes.installation import install, kubeconfig_of
from simulators.kubernetes.servers import Servers
from workers.watcher.reconciler import WHILE

PATIENCE = 300.0
HEARTBEATS = 300.0
"""Seconds between two heartbeats of a node that say that nothing changed: the default of the kubelet."""

AN_HOUR = 3600.0
SLICES = 5
"""Number of slices of the quiet time, from which the spread is computed."""

IDLE = 0.1
"""Processor seconds per second below which a process counts as idle."""

MEBIBYTE = 2**20

console = Console(width=130)


# ---- processes that are measured


class Measured:
    """Measured process, which reports its activity as lines on stdout."""

    def __init__(self, role: str, kubeconfig: Path) -> None:
        self._command = [sys.executable, "-P", "-m", "benchmarks.watcher", "--as", role, "--kubeconfig", str(kubeconfig)]
        self._lines: list[Object] = []
        self._happened = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.began = 0.0

    async def start(self) -> None:
        self.began = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=subprocess.PIPE, limit=MEBIBYTE)
        self._reading = asyncio.create_task(self._read())

    async def kill(self) -> None:
        assert self._process
        assert self._reading
        self._process.kill()
        await self._process.wait()
        await self._reading
        self._lines.clear()

    async def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        async for line in self._process.stdout:
            async with self._happened:
                self._lines.append(json.loads(line))
                self._happened.notify_all()
        async with self._happened:
            self._lines.append({"ended": True})
            self._happened.notify_all()

    async def until_quiet(self) -> None:
        """Waits until the process is idle: after its start the watcher checks the budgets of all jobs, one by one."""
        before = -1.0
        while self.cpu - before > IDLE:
            before = self.cpu
            await asyncio.sleep(1)

    def forget(self) -> None:
        self._lines.clear()

    async def until(self, done: Callable[[Sequence[Object]], bool]) -> float:
        """Waits until `done` accepts the lines so far. Returns the time of the last line."""
        async with asyncio.timeout(PATIENCE), self._happened:
            await self._happened.wait_for(lambda: bool(self._lines) and ("ended" in self._lines[-1] or done(self._lines)))
            return float(self._lines[-1]["at"])

    @property
    def cpu(self) -> float:
        """Processor seconds of the process since its start."""
        times = self._of_process().cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> tuple[float, float]:
        """Current and peak memory of the process in MiB."""
        process = self._of_process()
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return process.memory_info().rss / MEBIBYTE, peak / 1024

    def _of_process(self) -> psutil.Process:
        assert self._process
        return psutil.Process(self._process.pid)


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps({"at": time.monotonic(), **what}) + "\n")
    sys.stdout.flush()


async def be_watcher(kubeconfig: Path) -> None:
    """Runs the watcher as `python -P -m workers.watcher` does, except that its updates go to stdout."""
    from rekindle.policy.detection.watcher_updates import End, News, Register
    from rekindle.settings import Settings
    from rekindle.temporal import connect
    from workers.clusters import cluster_of
    from workers.watcher.watcher import Watcher

    class Acknowledging:
        async def send(self, job_id: str, news: News, _update_id: str) -> None:
            if not isinstance(news, End):
                sighting = news.registration.sighting if isinstance(news, Register) else news.sighting
                holders = sighting.holders if sighting else ()
                tell(job=job_id, held=sum(map(bool, holders)), lost=sum(not one for one in holders))

        async def has_trained(self, _: str) -> bool:
            return True

        async def lost(self, _: Collection[str]) -> list[str]:
            return []

        async def running(self) -> set[str]:
            return set()

    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig)
    await connect(lazy=True)  # every watcher loads the client

    async def identify() -> str:
        return "benchmark"

    async with cluster_of(settings, identify) as cluster:
        await Watcher(cluster, Acknowledging(), settings.limits).run()


async def be_floor(kubeconfig: Path) -> None:
    """Runs the lower bound: sends the watcher's requests and parses the answers."""
    from activities.clusters.kubernetes.reader import Reader
    from activities.clusters.kubernetes.watch import Watch
    from rekindle.model.rule_file import rules_of
    from rekindle.settings import Settings

    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig)
    async with Api(kubeconfig) as api, asyncio.TaskGroup() as group:
        watch = Watch(api, Reader(api, settings), settings, lambda *_: None, rules_of(settings.rules))
        since = []
        for path, query in watch.paths():
            with suppress(NotFound):  # the kind is not installed
                async with aclosing(api.everything(path, **query)) as changes:
                    versions = [
                        change.object["metadata"]["resourceVersion"] async for change in changes if change.type == BOOKMARK
                    ]
                since.append((path, query, versions[0]))
        tell(listed=True)
        for path, query, version in since:
            group.create_task(_count(api, path, query, version))


async def _count(api: Api, path: str, query: dict[str, str], version: str) -> None:
    failed = 0
    async for change in api.watch(path, version, **query):
        if change.object["kind"] == "Pod":
            failed += change.object["status"]["phase"] == "Failed"
            tell(failed=failed, pods=1)


# ---- what is measured


class World:
    def __init__(self, etcd: Etcd, size: Size, directory: Path) -> None:
        self._etcd, self._size, self._directory = etcd, size, directory

    def kill_api_server(self) -> None:
        """Kills the API server, which is then restarted."""
        os.kill(int((self._directory / "kube-apiserver.pid").read_text()), signal.SIGKILL)

    def of_pods(self, jobs: Iterable[int], *, failed: bool) -> Written:
        """Returns the transactions by which all pods of these jobs fail, or run."""
        places = self._places()
        pods = (
            (
                large_cluster.pod_key(job, rank),
                large_cluster.pod(job, rank, (places[job] + rank) % self._size.nodes, failed=failed),
            )
            for job in jobs
            for rank in range(self._size.pods_of(job))
        )
        return list(large_cluster.written(pods, 1))

    async def put(self, transactions: Written) -> None:
        await self._etcd.put(transactions)

    def _places(self) -> list[int]:
        places = [0]
        for job in range(self._size.jobs):
            places.append(places[-1] + self._size.pods_of(job))
        return places

    async def beat(self) -> None:
        """Writes the heartbeats of all nodes, one per node every five minutes, until it is cancelled."""
        number = 0
        while True:
            await self._etcd.put(large_cluster.written([(large_cluster.node_key(number), large_cluster.node(number))]))
            number = (number + 1) % self._size.nodes
            await asyncio.sleep(HEARTBEATS / self._size.nodes)


def told(jobs: dict[str, int], key: str) -> Callable[[Sequence[Object]], bool]:
    """Returns a condition: the last update of each of these jobs has this number of pods of a kind."""

    def done(lines: Sequence[Object]) -> bool:
        last = {line["job"]: line[key] for line in lines if "job" in line}
        return all(last.get(job) == count for job, count in jobs.items())

    return done


class Figures:
    def __init__(self) -> None:
        self.table = Table("what", "median", "least", "most", "n", "to be reached", title="the watcher on a large cluster")

    def add(self, what: str, values: Sequence[float], unit: str, reach: str = "-") -> None:
        shown = [
            f"{one:.2f} {unit}" if unit == "s" else f"{one:.0f} {unit}" for one in (median(values), min(values), max(values))
        ]
        self.table.add_row(what, *shown, str(len(values)), reach)
        console.print(f"{what}: {', '.join(shown)}", style="dim")


async def measure(size: Size, rounds: int, quiet: float, world: World, kubeconfig: Path, figures: Figures) -> None:
    every = {large_cluster.job_uid(job): size.pods_of(job) for job in range(size.jobs)}
    large = {large_cluster.job_uid(0): size.largest}
    few = some_jobs(size)
    many = {large_cluster.job_uid(job): size.pods_of(job) for job in few}

    floor, watcher = Measured("floor", kubeconfig), Measured("watcher", kubeconfig)
    seconds, spent = await restarts(floor, rounds, lambda lines: "listed" in lines[-1])
    figures.add("floor of a restart: everything is listed and parsed", seconds, "s")
    figures.add("the same, of a processor", spent, "s")
    lost = sum(many.values())
    figures.add(
        f"floor of {size.largest} failed pods: all are parsed",
        await failures(floor, world, [0], rounds, lambda lines: sum(line.get("pods", 0) for line in lines) >= size.largest),
        "s",
    )
    figures.add("floor of an hour, quiet", await quietly(floor, world, quiet), "s")
    await floor.kill()

    seconds, spent = await restarts(watcher, rounds, told(every, "held"))
    figures.add("restart of the watcher, until all jobs are told", seconds, "s", "10 s")
    figures.add("the same, of a processor", spent, "s")
    at_first = watcher.memory
    seconds = await failures(watcher, world, [0], rounds, told(large, "lost"), told(large, "held"))
    figures.add(f"{size.largest} pods of one job fail, until all are told", seconds, "s", "2 s")
    seconds = await failures(watcher, world, few, rounds, told(many, "lost"), told(many, "held"))
    figures.add(f"{lost} pods of {len(few)} jobs fail, until all are told", seconds, "s", "2 s")
    figures.add("the API server is killed, and pods fail, until they are told", [await outage(watcher, world, large)], "s")
    an_hour = [one + median(spent) for one in await quietly(watcher, world, quiet)]
    figures.add("an hour, quiet, with one list of everything, of a processor", an_hour, "s", "60 s")
    for what, values in (("now", (at_first[0], watcher.memory[0])), ("at most", (at_first[1], watcher.memory[1]))):
        figures.add(f"memory {what}, behind the restart and at the end", values, "MiB", "400 MiB")
    await watcher.kill()


def some_jobs(size: Size) -> list[int]:
    """Returns as many small jobs as have together as many pods as the large one."""
    jobs, pods = [], 0
    for job in range(1, size.jobs):
        if pods >= size.largest:
            break
        jobs.append(job)
        pods += size.pods_of(job)
    return jobs


async def restarts(process: Measured, rounds: int, done: Callable[[Sequence[Object]], bool]) -> tuple[list[float], list[float]]:
    """Returns the seconds from each start until `done`, and the processor seconds. The last process keeps running."""
    seconds, spent = [], []
    for number in range(rounds):
        if number:
            await process.kill()
        await process.start()
        seconds.append(await process.until(done) - process.began)
        spent.append(process.cpu)
    return seconds, spent


async def failures(
    process: Measured,
    world: World,
    jobs: Sequence[int],
    rounds: int,
    lost: Callable[[Sequence[Object]], bool],
    back: Callable[[Sequence[Object]], bool] | None = None,
) -> list[float]:
    """Returns the seconds from the first write until the failures are reported."""
    failed, running = world.of_pods(jobs, failed=True), world.of_pods(jobs, failed=False)
    seconds = []
    for number in range(rounds):
        if number and back:  # the watcher sends updates of a job more rarely when there are many
            await asyncio.sleep(WHILE)
        await process.until_quiet()
        process.forget()
        began = time.monotonic()
        await world.put(failed)
        seconds.append(await process.until(lost) - began)
        process.forget()
        await world.put(running)
        await process.until(back or lost)
    await process.until_quiet()
    return seconds


async def outage(process: Measured, world: World, large: dict[str, int]) -> float:
    """Kills the API server while pods fail. Returns the seconds until they are reported, which needs a new list of everything."""
    process.forget()
    began = time.monotonic()
    world.kill_api_server()
    await world.put(world.of_pods([0], failed=True))
    seconds = await process.until(told(large, "lost")) - began
    await world.put(world.of_pods([0], failed=False))
    await process.until(told(large, "held"))
    await process.until_quiet()
    return seconds


async def quietly(process: Measured, world: World, seconds: float) -> list[float]:
    """Returns the processor seconds per hour without changes, one value for each slice of the time."""
    beating = asyncio.create_task(world.beat())
    found = []
    for _ in range(SLICES):
        before, began = process.cpu, time.monotonic()
        await asyncio.sleep(seconds / SLICES)
        found.append((process.cpu - before) / (time.monotonic() - began) * AN_HOUR)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    return found


async def benchmark(options: argparse.Namespace) -> None:
    size = Size(options.pods, options.jobs, options.nodes, options.largest)
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        directory = Path(folder)
        servers = Servers(control_plane_binaries(console.print), directory, oldest=options.oldest)
        try:
            await servers.start_api_server()
            async with Api(servers.kubeconfig) as api:
                await install(api, servers.endpoint, directory)
            began = time.monotonic()
            etcd = Etcd(servers.etcd)
            await etcd.put(large_cluster.written(large_cluster.everything(size)))
            console.print(f"filled within {time.monotonic() - began:.0f} s", style="dim")
            own = kubeconfig_of("watcher", directory)
            await measure(size, options.rounds, options.quiet, World(etcd, size, directory), own, figures)
        finally:
            await servers.stop()
    console.print(figures.table)
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}; {size}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--largest", type=int, default=1_250, help="pods of the first job (default: 1250)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=60, help="seconds in which nothing but heartbeats happens (default: 60)")
    parser.add_argument("--oldest", action="store_true", help="of a server that streams no lists")
    parser.add_argument("--as", dest="role", choices=("watcher", "floor"), help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        asyncio.run({"watcher": be_watcher, "floor": be_floor}[options.role](options.kubeconfig))
    else:
        asyncio.run(benchmark(options))


if __name__ == "__main__":
    main()
