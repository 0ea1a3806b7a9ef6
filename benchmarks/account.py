"""`make account`: compares the account of a job with sixty faults of all kinds with the step logs of its ranks.

The faults are injected into one long job on the whole product. Its account is that of `rekindle report`, after the job has ended.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import strikes
from benchmarks.struck_jobs import PATIENCE, PODS, RANKS_PER_POD, JobOptions, Row, Strike, Trial, steps
from rekindle.cli.demos.process_faults import processes_of
from rekindle.cli.demos.scenario import RANKS
from rekindle.cli.stack import Machine, running
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.account import Bucket
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode
from rekindle.policy.account import summary
from rekindle.policy.account.summary import Summary
from tests.support.step_logs import SAVES, TOLERANCE, Logged, Times, counted, logged

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "goodput.md"
FAULTS = 60
"""Faults of one job within ten minutes. With more of them its processes are recovered more than 50 times within an hour, and each
further fault leads to a restart of the job, of which there are five within an hour."""
INJECTED_EVERY = 500
"""Steps between two faults that the job injects into itself."""
UNKNOWN = 0.001
"""Largest share of unknown time."""

HEAD = """# Accounts of faults

Written by `make account`. Four gloo ranks in two pods train the small GPT of the examples, with the whole product beside them.
One job gets faults of all kinds, one after the other. When it has ended, its account is compared with the step logs of its ranks.
The account is that of `rekindle report`. A stretch is the time between two pauses of training. Ranks end a step within a
millisecond of each other, so that each stretch may differ by so much.

"""

BODY = """{found.rounds} faults were injected from outside on {date}, and {found.injected} by the job itself.
They led to {incidents} incidents. The job took {found.whole.seconds:.0f} s, with {found.logs.stretches} stretches of training.

| | account, s | step logs, s | difference, ms |
|---|---|---|---|
{sums}
| bucket | seconds | percent |
|---|---|---|
{buckets}
The buckets sum to {all_buckets:.3f} s. The wall time is {found.whole.seconds:.3f} s.

These faults were injected from outside, one after the other:

{kinds}

These are the last modes of the incidents, with their verdicts:

{modes}
"""

NAMES = {"trained": "training and checkpoints", "again": "steps done again", "stood": "training stands"}

console = Console(width=130)


async def kill_all_pods(trial: Trial) -> float:
    """Kills all processes of all pods, so that no copy of the state is left."""
    doomed = [pid for pod in range(PODS) for pid in processes_of(trial.latest(pod * RANKS_PER_POD).pod_uid)]
    return strikes.send(signal.SIGKILL, *doomed)


KINDS: dict[str, Strike] = {
    "kill -9 of a rank": strikes.kill,
    "SIGSTOP of a rank": strikes.freeze,
    "kill -9 of two ranks": strikes.kill_two,
    "kill -9 of a rank, the control worker and the gateway": strikes.kill_with_the_control_plane,
    "a pod is lost": strikes.kill_a_pod,
    "a node is sub-healthy": strikes.degrade_a_node,
    "a planned swap": strikes.ask_for_a_swap,
}
ALL_LOST, EVERY = "all pods are lost", 25
"""Fault after which the job is restarted, and faults from one to the next. A job that is restarted five times within an hour is
given up."""


class ManyFaults(JobOptions):
    """Options of a job that injects exceptions and failures for want of memory into itself, besides other faults."""

    hot_switch: bool = True

    @property
    def injected(self) -> list[dict[str, object]]:
        """Faults that the job injects into itself."""
        at = range(INJECTED_EVERY, self.steps, INJECTED_EVERY)
        return [{"fault": ("exception", "memory")[i % 2], "rank": i % RANKS, "step": step} for i, step in enumerate(at)]

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment of the job's pods."""
        return {"REKINDLE_INJECT": json.dumps(self.injected)}


class ManyRow(Row):
    """Row of one job with faults of all kinds."""

    def options(self, rounds: int, seed: int) -> JobOptions:
        return ManyFaults(seed=seed, steps=steps(rounds), row_spares=self.spares)


class ManyFaultsTrial(Trial):
    """Trial whose faults may be answered by any mode, or together with another fault."""

    incidents: dict[int, Incident]
    """Incidents that have ended, by their number."""

    async def run(self, seed: int) -> list[tuple[float, Incident]]:
        """Runs the job with its faults to its end."""
        self.incidents = {}
        return await super().run(seed)

    async def incident(self, struck: float) -> Incident:
        """Returns the last incident as soon as training goes on and none is open."""
        goal = self.steps() + 3
        await self.until(lambda: self.steps() >= goal, f"training goes on after fault {self.number + 1}")
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await self.rekindle.status(self.job.metadata.uid)
                ended = [one for one in status.state.history if one.started_at.timestamp() >= struck]
                self.incidents |= {one.number: one for one in status.state.history}
                if ended and status.running is None and not status.state.faults:
                    return ended[-1]
                await asyncio.sleep(0.2)

    def _spares_wait(self) -> bool:
        """Returns whether a spare waits in each pod that trains. Other pods have ended, some while their spare was loading."""
        latest = [self.latest(pod * RANKS_PER_POD) for pod in range(PODS)]
        logs = [(self.directory / "logs" / f"{one.pod}.{one.pod_uid[:8]}.log").read_text() for one in latest]
        return all(log.count("spare parked") > log.count("spare assigned to a rank") for log in logs)


async def _strike(trial: Trial) -> float:
    is_last = trial.number % EVERY == EVERY - 1
    name, strike = (ALL_LOST, kill_all_pods) if is_last else list(KINDS.items())[trial.number % len(KINDS)]
    console.print(f"{trial.number + 1} of {trial.rounds}: {name}, step {trial.steps()}", style="dim")
    return await strike(trial)


@dataclass
class Found:
    """Account of the job, beside what its step logs say."""

    rounds: int
    injected: int
    incidents: Sequence[Incident]
    whole: Summary
    logs: Logged

    @property
    def said(self) -> Times:
        seconds = {share.bucket.value: share.seconds for share in self.whole.buckets}
        phases = [phase for one in self.incidents for verdict in one.ladder for phase in verdict.phases]
        return counted(seconds, sum(phase.seconds for phase in phases if phase.name == SAVES))

    @property
    def unknown(self) -> float:
        """Share of the job's time of which the account does not know the use."""
        return sum(share.seconds for share in self.whole.buckets if share.bucket is Bucket.UNKNOWN) / self.whole.seconds

    @property
    def differs(self) -> float:
        """Largest difference between account and step logs, in seconds."""
        said, logs = self.said, self.logs
        return max(abs(said.trained - logs.trained), abs(said.again - logs.again), abs(said.stood - logs.stood))

    @property
    def is_well(self) -> bool:
        return self.differs <= TOLERANCE * self.logs.stretches and self.unknown <= UNKNOWN

    def page(self) -> str:
        modes = Counter(f"{one.ladder[-1].mode}: {one.verdict}" for one in self.incidents if one.ladder)
        sums = "".join(
            f"| {name} | {said:.3f} | {logged:.3f} | {(said - logged) * 1000:+.1f} |\n"
            for key, name in NAMES.items()
            for said, logged in [(getattr(self.said, key), getattr(self.logs, key))]
        )
        return HEAD + BODY.format(
            found=self,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            incidents=len(self.incidents),
            kinds="\n".join(f"- {name}" for name in (*KINDS, f"{ALL_LOST}, at each {EVERY}th fault")),
            modes="\n".join(f"- {name} ({count})" for name, count in sorted(modes.items())),
            sums=sums,
            buckets="".join(f"| {share.bucket} | {share.seconds:.3f} | {share.percent:.2f} |\n" for share in self.whole.buckets),
            all_buckets=sum(share.seconds for share in self.whole.buckets),
        )


@contextmanager
def kept_on_failure(prefix: str) -> Iterator[Path]:
    """Yields a temporary folder. It stays where it is if the block fails, since the error names logs in it."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    yield directory
    shutil.rmtree(directory)


async def compare(rounds: int, seed: int) -> Found:
    """Runs the job to its end, and returns its account beside what its step logs say."""
    row = ManyRow("faults of all kinds", Mode.IN_PLACE, _strike, {}, spares=1)
    with kept_on_failure("rekindle-account-") as directory:
        async with (
            running(directory, Machine(PODS + 1, RANKS_PER_POD)) as stack,
            ClusterClient(Path(stack.addresses.socket)) as cluster,
        ):
            rekindle = await Rekindle.connect(stack.addresses.temporal)
            trial = ManyFaultsTrial(row, rounds, stack, rekindle, cluster)
            await trial.run(seed)
            account = (await rekindle.account(trial.job.metadata.uid)).account
            return Found(
                rounds=rounds,
                injected=len(list((trial.directory / "injected").glob("rank-*"))),
                incidents=list(trial.incidents.values()),
                whole=summary.of_job("gpt", trial.job.metadata.uid, account),
                logs=logged(trial.directory),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"faults from outside (default: {FAULTS})")
    parser.add_argument("--seed", type=int, default=7, help="of the model and its data (default: 7)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # started processes are ended too
    found = asyncio.run(compare(options.faults, options.seed))
    console.print(found.page(), soft_wrap=True, markup=False)
    if options.write:
        PAGE.write_text(found.page())
    if not found.is_well:
        sys.exit(f"account and step logs differ by {found.differs:.4f} s in {found.logs.stretches} stretches")


if __name__ == "__main__":
    main()
