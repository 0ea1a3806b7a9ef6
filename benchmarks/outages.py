"""Outages of the control plane while jobs are struck: `python -P -m benchmarks.outages --rounds 30 --jobs 60 --seed 1`.

In each round Temporal, the gateway or both are stopped (SIGSTOP) for 5 to 90 s, before, at or after the moment in which all jobs
are struck, and go on. Real Temporal on a database file, the real control worker over pods in memory, the real gateway; training
sides are real managers over played ranks, and some are MindIO's. Whoever can mend itself must not be restarted, no fault may be
recovered twice, and no job may be left standing. Ends with 1, and names job, round and seed, where that is not so.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles

from temporalio.client import Client

from benchmarks.installations import installation, persistently, register
from benchmarks.load import a_job
from benchmarks.load_control import PODS, RANKS_PER_POD
from benchmarks.training_sides import GONE, MEMORY, RANKS, MindioSide, OurSide, ToldPod
from rekindle import ids
from rekindle.cli.stack import Stack
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident
from rekindle.model.job import Capability, Job, JobId
from rekindle.model.keys import FAULT_RETRY_TIMES, PROCESS_RECOVER_ENABLE, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobStatus
from rekindle.model.training_side import TrainingSide
from rekindle.temporal import connect
from rekindle_training.manager.rendezvous_store import open_store

SHORTEST, LONGEST = 5.0, 90.0
"""Seconds of an outage."""
LEAD, LAG = 4.0, 6.0
"""Seconds in which the stop may come before the strike, and behind it."""
SETTLES = 300.0
"""Seconds from the end of an outage until every job has its verdict."""
LOOKS = 2.0
QUIET = 12.0
"""Pause after the last verdict, in which repeated reports arrive. Source: a manager's call, of 10 s."""
MINDIO_SHARE = 10
"""Number of jobs of which one speaks MindIO."""
AT_ONCE = 16
SUB_HEALTH = "sub-health"
STOPPED = (("temporal",), ("gateway",), ("temporal", "gateway"))

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Strike:
    kind: str
    rank: int


@dataclass(frozen=True)
class Outage:
    begins: float
    """Seconds behind the strike; less than 0: before it."""
    lasts: dict[str, float]
    """Seconds, by who is stopped."""

    @classmethod
    def drawn(cls, number: int, chance: random.Random) -> "Outage":
        begins = (-chance.uniform(0.5, LEAD), 0.0, chance.uniform(0.02, LAG))[chance.randrange(3)]
        return cls(begins, {name: chance.uniform(SHORTEST, LONGEST) for name in STOPPED[number % len(STOPPED)]})

    @property
    def ends(self) -> float:
        return self.begins + max(self.lasts.values())

    def __str__(self) -> str:
        who = ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in self.lasts.items())
        return f"{who}, {self.begins:+.1f} s from the strike"


@dataclass
class Struck:
    """A job with its training side, and what it has been through."""

    job: Job
    side: OurSide | MindioSide
    incidents: int = 0
    """Incidents that the job had before this round."""
    strike: Strike = Strike(GONE, 0)
    struck_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    generation: int = 0
    """State before the fault is injected."""
    left: str = ""
    """Why MindIO has left in this round, if it has."""
    told: str = ""
    """Id of the last sub-health."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_mindio(self) -> bool:
        return self.job.training_side is TrainingSide.MINDIO

    @property
    def row(self) -> str:
        what = {GONE: "a process ends", MEMORY: "a step wants memory", SUB_HEALTH: "a node turns sub-healthy"}[self.strike.kind]
        return f"{what}, MindIO" if self.is_mindio else what

    def draw(self, chance: random.Random) -> None:
        kinds = (GONE, MEMORY) if self.is_mindio else (GONE, MEMORY, SUB_HEALTH)
        self.strike = Strike(chance.choice(kinds), chance.randrange(RANKS))
        self.generation, self.left = self.side.generation, ""

    def must_leave(self, outage: Outage) -> bool:
        """Returns whether MindIO has left, or had to: it waits for 30 s, and an order for it is tried for 25."""
        return bool(self.left) or (self.is_mindio and outage.ends >= self.job.limits.order.total_seconds())

    def watch(self) -> None:
        """Starts another client in place of each that has left."""
        self.left = self.left or (self.side.has_left if self.is_mindio else "")


@dataclass(frozen=True)
class Sample:
    row: str
    stopped: tuple[str, ...]
    seconds: float
    """Seconds to the verdict, from the fault or from the end of the outage, whichever is later."""
    by_itself: bool
    restarted: bool


class Outages:
    def __init__(self, stack: Stack, temporal: Client, pods_file: Path, seed: int) -> None:
        self._stack, self._temporal, self._pods_file, self._seed = stack, temporal, pods_file, seed
        self.jobs: dict[str, Struck] = {}
        self.samples: list[Sample] = []
        self.broken: list[str] = []

    # ---- the jobs

    async def begin(self, jobs: Sequence[Struck]) -> None:
        self.jobs |= {struck.job.id: struck for struck in jobs}
        await _all(jobs, lambda struck: register(self._temporal, struck.job))
        async with asyncio.timeout(SETTLES):
            while not all([struck.side.trains and (await self._status(struck)).state.attachment for struck in jobs]):
                await asyncio.sleep(LOOKS)

    async def end(self, jobs: Sequence[Struck]) -> None:
        for struck in jobs:
            del self.jobs[struck.job.id]
            await struck.side.stop()
            await self._temporal.get_workflow_handle(ids.job_workflow(struck.job.id)).terminate("the round is over")

    async def follow_pods(self) -> None:
        """Processes follow the pods that the control worker's cluster tells of. Until it is cancelled."""
        known: dict[str, list[ToldPod]] = {}
        with self._pods_file.open() as file:
            while True:
                changed = set()
                while (line := file.readline()).endswith("\n"):
                    told = json.loads(line)
                    known[told["job"]] = [ToldPod(**pod) for pod in told["pods"]]
                    changed.add(told["job"])
                    if not known[told["job"]] and (struck := self.jobs.get(told["job"])):
                        await struck.side.see(())
                for job_id, struck in self.jobs.items():
                    struck.watch()
                    if job_id in changed or not struck.side.pods:
                        await struck.side.see(known.get(job_id, ()))
                await asyncio.sleep(0.05)

    async def _status(self, struck: Struck) -> JobStatus:
        job = self._temporal.get_workflow_handle(ids.job_workflow(struck.job.id))
        status: JobStatus = await job.query(ids.Queries.STATUS, result_type=JobStatus, rpc_timeout=timedelta(seconds=10))
        return status

    # ---- one round

    async def round(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        outage = Outage.drawn(number, chance)
        jobs = list(self.jobs.values())
        for struck in jobs:
            struck.draw(chance)
        print(f"round {number}: {outage}", file=sys.stderr, flush=True)
        strike_at = time.monotonic() + max(0.0, -outage.begins)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop(outage, strike_at))
            group.create_task(self._strike(number, jobs, strike_at))
        ended_at = datetime.now(UTC)
        round_ = Round(number, outage, ended_at - timedelta(seconds=max(outage.lasts.values())), ended_at)
        settled = await self._settled(jobs)
        await asyncio.sleep(QUIET)
        statuses = await persistently(lambda: self._statuses(jobs), SETTLES)
        for struck in jobs:
            self._judge(struck, statuses[struck.job.id], round_, settled=settled)
        await self._heal(jobs)
        for struck in jobs:
            if struck.problems:
                self.broken += [f"round {number}, seed {self._seed}, {struck.job.id}: {problem}" for problem in struck.problems]
                print("\n".join(self.broken[-len(struck.problems) :]), file=sys.stderr, flush=True)
                await self.end([struck])

    async def _stop(self, outage: Outage, strike_at: float) -> None:
        await asyncio.sleep(strike_at + outage.begins - time.monotonic())

        async def one(name: str, seconds: float) -> None:
            process = self._stack.members[name].process
            assert process
            os.kill(process.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                os.kill(process.pid, signal.SIGCONT)

        await asyncio.gather(*(one(name, seconds) for name, seconds in outage.lasts.items()))

    async def _strike(self, number: int, jobs: Sequence[Struck], strike_at: float) -> None:
        await asyncio.sleep(strike_at - time.monotonic())
        telling = []
        for struck in jobs:
            struck.struck_at = datetime.now(UTC)
            if struck.strike.kind == SUB_HEALTH:
                struck.told = f"sub-health {number} of {struck.job.id}"
                telling.append(asyncio.create_task(self._tell(struck, FaultReport(faults=(sub_health(struck),)), struck.told)))
            else:
                struck.side.strike(struck.strike.kind, struck.strike.rank)
        await asyncio.gather(*telling)

    async def _tell(self, struck: Struck, report: FaultReport, update: str) -> None:
        """Sends an update until it is answered, as a watcher does."""
        job = self._temporal.get_workflow_handle(ids.job_workflow(struck.job.id))

        async def once() -> Receipt:
            receipt: Receipt = await job.execute_update(
                ids.Updates.REPORT_FAULTS, report, id=update, result_type=Receipt, rpc_timeout=timedelta(seconds=10)
            )
            return receipt

        await persistently(once, LONGEST + SETTLES)

    async def _heal(self, jobs: Sequence[Struck]) -> None:
        """Nodes are well again."""
        ill = [struck for struck in jobs if struck.strike.kind == SUB_HEALTH]
        await _all(ill, lambda struck: self._tell(struck, FaultReport(cleared=(struck.told,)), f"{struck.told} is over"))

    async def _settled(self, jobs: Sequence[Struck]) -> bool:
        """Returns whether every job has the verdict of its fault, and no recovery runs."""
        until, waiting = time.monotonic() + SETTLES, list(jobs)
        gone = {struck.job.id for struck in jobs if struck.left}
        while waiting and time.monotonic() < until:
            for struck in [one for one in waiting if one.left and one.job.id not in gone]:
                gone.add(struck.job.id)
                await self._tell(struck, FaultReport(faults=pods_failed(struck)), f"pods of {struck.job.id} failed")
            with suppress(Exception):  # Temporal is only coming back
                statuses = await self._statuses(waiting)
                waiting = [struck for struck in waiting if not _is_settled(struck, statuses[struck.job.id])]
            await asyncio.sleep(LOOKS)
        return not waiting

    async def _statuses(self, jobs: Sequence[Struck]) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}

        async def one(struck: Struck) -> None:
            found[struck.job.id] = await self._status(struck)

        await _all(jobs, one)
        return found

    # ---- judgement

    def _judge(self, struck: Struck, status: JobStatus, round_: "Round", *, settled: bool) -> None:
        state, since = status.state, _since(struck, status)
        recovered = [incident for incident in since if incident.verdict is Outcome.RECOVERED]
        if len(recovered) != 1:
            struck.problems.append(f"{struck.row}: recovered {len(recovered)} times: {'; then '.join(map(_ladder, since))}")
        if status.running or not struck.side.trains:
            struck.problems.append(f"{struck.row}: held, {status.running or 'training stands'} (all settled: {settled})")
        if state.downgrade:
            struck.problems.append(f"{struck.row}: the policy was lowered: {state.downgrade.reason}")
        struck.problems += [
            f"{struck.row}: restarted, and it could have mended itself: {_ladder(incident)}"
            for incident in since
            if _restarted(incident) and not struck.must_leave(round_.outage)
        ]
        for incident in recovered[-1:]:
            self._sample(struck, incident, round_)
        struck.incidents = state.incidents

    def _sample(self, struck: Struck, incident: Incident, round_: "Round") -> None:
        verdict_at = incident.started_at + timedelta(seconds=incident.seconds)
        since = max(struck.struck_at, round_.ended_at) if verdict_at > round_.begun_at else struck.struck_at
        seconds = max((verdict_at - since).total_seconds(), 0.0)
        by_itself = not struck.is_mindio and struck.side.generation - struck.generation > 1
        self.samples.append(Sample(struck.row, tuple(round_.outage.lasts), seconds, by_itself, _restarted(incident)))


@dataclass(frozen=True)
class Round:
    number: int
    outage: Outage
    begun_at: datetime
    """The outage."""
    ended_at: datetime


def _since(struck: Struck, status: JobStatus) -> list[Incident]:
    """Incidents of this round."""
    return [incident for incident in status.state.history if incident.number > struck.incidents]


def _is_settled(struck: Struck, status: JobStatus) -> bool:
    is_recovered = any(incident.verdict is Outcome.RECOVERED for incident in _since(struck, status))
    return is_recovered and not status.running and struck.side.trains


def _ladder(incident: Incident) -> str:
    return "; ".join(f"{verdict.mode}: {verdict.outcome}: {verdict.reason}" for verdict in incident.ladder)


def _restarted(incident: Incident) -> bool:
    return any(verdict.mode is Mode.JOB_RESCHEDULING for verdict in incident.ladder)


async def _all(jobs: Sequence[Struck], do: Callable[[Struck], Awaitable[object]]) -> None:
    few = asyncio.Semaphore(AT_ONCE)

    async def one(struck: Struck) -> None:
        async with few:
            await do(struck)

    await asyncio.gather(*(one(struck) for struck in jobs))


def sub_health(struck: Struck) -> Fault:
    pod_rank = struck.strike.rank // RANKS_PER_POD
    pod = next(pod for pod in struck.side.pods.values() if pod.rank == pod_rank and not pod.backup)
    return Fault(
        id=struck.told,
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(pod_rank,),
        ranks=tuple(range(pod_rank * RANKS_PER_POD, (pod_rank + 1) * RANKS_PER_POD)),
        node=pod.node,
        pod_uids=(pod.uid,),
        code="80E18005",
        message="NPU link is degraded",
        seen_at=datetime.now(UTC),
        source="benchmark",
    )


def pods_failed(struck: Struck) -> tuple[Fault, ...]:
    """Reports a job whose MindIO client has left, as a watcher sees it."""
    return tuple(
        Fault(
            id=f"pod/{pod.uid}",
            kind=FaultKind.POD,
            pod=pod.name,
            pod_ranks=(pod.rank,),
            pod_uids=(pod.uid,),
            message=f"pod {pod.name} failed: exit code 2",
            seen_at=datetime.now(UTC),
            source="benchmark",
        )
        for pod in struck.side.pods.values()
    )


def mindio_job(job_id: str) -> Job:
    """Returns a job of MindIO that is asked within minutes, after a lost report, whether it trains."""
    return Job(
        id=JobId(job_id),
        name=job_id,
        pods=PODS,
        ranks_per_pod=RANKS_PER_POD,
        kind="AscendJob",
        training_side=TrainingSide.MINDIO,
        capabilities=(Capability.SINGLE_OPERATOR, Capability.MEGATRON),
        labels={FAULT_RETRY_TIMES: "3", PROCESS_RECOVER_ENABLE: "on"},
        annotations={RECOVER_STRATEGY: "retry,recover-in-place,recover"},
        limits=Limits(status_lost=timedelta(seconds=60), repair=timedelta(seconds=90), pods_stay=timedelta(seconds=1)),
    )


def table(samples: Sequence[Sample]) -> str:
    lines = [
        "| fault | stopped | n | median | p95 | least to most | mended by itself | restarted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted({sample.row for sample in samples}):
        for stopped in STOPPED:
            if found := [sample for sample in samples if sample.row == row and sample.stopped == stopped]:
                seconds = sorted(sample.seconds for sample in found)
                p95 = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
                spread = f"{median(seconds):.1f} | {p95:.1f} | {seconds[0]:.1f} to {seconds[-1]:.1f}"
                counts = f"{sum(sample.by_itself for sample in found)} | {sum(sample.restarted for sample in found)}"
                lines.append(f"| {row} | {' and '.join(stopped)} | {len(found)} | {spread} | {counts} |")
    return "\n".join(lines)


async def measure(options: argparse.Namespace, directory: Path) -> Outages:
    pods_file, mindios = directory / "pods.jsonl", options.jobs // MINDIO_SHARE
    pods_file.touch()
    ours = [f"job-{number}" for number in range(options.jobs - mindios)]
    theirs = [[f"mindio-{number}-{place}" for place in range(mindios)] for number in range(options.rounds)]
    every = [*ours, *(job_id for of_one in theirs for job_id in of_one)]
    store = await open_store()
    async with installation(directory, ("--pods-file", str(pods_file), *every)) as stack:
        address = stack.addresses.gateway
        outages = Outages(stack, await connect(stack.addresses.temporal), pods_file, options.seed)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(outages.follow_pods())
            await outages.begin([Struck(a_job(job_id), OurSide(address, job_id, store)) for job_id in ours])
            for number, of_one in enumerate(theirs):
                new = [Struck(mindio_job(job_id), MindioSide(address, job_id)) for job_id in of_one]
                await outages.begin(new)
                await outages.round(number)
                await outages.end([struck for struck in new if struck.job.id in outages.jobs])
            following.cancel()
        await asyncio.gather(*(struck.side.stop() for struck in outages.jobs.values()))
        return outages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="outages (default: 30)")
    parser.add_argument("--jobs", type=int, default=60, help="jobs that are struck in each (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="of who is stopped, when and for how long (default: 1)")
    parser.add_argument("--logs", type=Path, help="folder that keeps the logs of all processes (default: none are kept)")
    options = parser.parse_args()
    if options.jobs < MINDIO_SHARE:
        parser.error(
            f"--jobs: {options.jobs} are too few, one in {MINDIO_SHARE} speaks MindIO: at least {MINDIO_SHARE} are needed"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rekindle-outages-") as directory:
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            logging.basicConfig(filename=options.logs / "training.log", format="%(asctime)s %(name)s %(message)s %(levelname)s")
        outages = asyncio.run(measure(options, options.logs or Path(directory)))
    minutes = (time.monotonic() - began) / 60
    print(f"{options.rounds} rounds, {options.jobs} jobs, seed {options.seed}, {os.cpu_count()} cores, {minutes:.0f} minutes\n")
    print(table(outages.samples))
    print(f"\nbroken: {len(outages.broken)}", *outages.broken, sep="\n")
    if outages.broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
