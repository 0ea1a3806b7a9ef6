"""Measures one job with mixed faults, one every few seconds, with the whole control plane running.

    python -P -m benchmarks.marathon [--faults 1000] [--every 15] [--seed 7]

Four gloo ranks in four pods train the small GPT, each with three shares of its data. Zero to two more nodes come and go as
spares. A fault is drawn from a table. It happens whether or not the job has recovered from the one before. The job's own account
says what it did with each accelerator second. The final parameters are compared with those of an undisturbed run.
"""

import argparse
import asyncio
import os
import platform
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.hot_switch import NEVER_ASIDE
from benchmarks.process_recovery import p95
from benchmarks.struck_jobs import last_lines
from rekindle.cli.demos.elastic import ElasticDemo, ElasticScenario
from rekindle.cli.demos.process_faults import processes_of
from rekindle.cli.demos.scenario import RANKS, Step, until
from rekindle.cli.stack import Machine, running
from rekindle.model.account import Bucket
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import SUB_HEALTHY_STRATEGY
from rekindle.model.picture import StepRecord

SPARE_NODES = 2
PARTS = 3
"""Shares of each rank. The others carry those of a missing one: three of four ranks train with three quarters of the speed."""
STEP_MS = 501.0
"""Least duration of a step. The undisturbed run takes it as fast as the machine allows."""
BOUNDS_WITHIN = 300.0
"""Seconds in which the recoveries of the job are counted. By default a job is given up long before 1,000 faults, as it should."""
FAULTS = ("kill", "kill", "freeze", "two ranks", "pod", "node", "sub-health", "control plane")
"""Faults of the same frequency. A killed rank is twice as frequent."""
TOLD_EVERY = 10

console = Console(width=130)


class MarathonOptions(ElasticDemo):
    """Options of the job."""

    faults: int
    every: float

    @property
    def spare_nodes(self) -> int:
        """Number of nodes that come and go."""
        return SPARE_NODES

    @property
    def spares(self) -> int:
        """Number of loaded processes in each pod that wait for a rank."""
        return 1

    @property
    def arguments(self) -> list[str]:
        """Arguments of the module, also of its undisturbed run."""
        return [*super().arguments, f"--parts={PARTS}"]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job."""
        return {SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH.value}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job. No node is set aside, however often it is lost, and the job is not given up."""
        return {**super().limits, **NEVER_ASIDE, "boundsWithin": BOUNDS_WITHIN}

    @property
    def incidents(self) -> int:
        """Number of incidents to wait for at the end. All have ended before."""
        return 1


class Marathon(ElasticScenario):
    options: MarathonOptions

    def step_ms(self, loading: float) -> float:
        """Returns the same duration of a share's batch however slow the machine is."""
        return STEP_MS / PARTS

    async def strike(self) -> None:
        """Injects all faults, and waits until the job is whole again."""
        self._chance, self._struck = random.Random(self.options.seed), []
        self.seen: dict[int, Incident] = {}
        self.faults = Counter[str]()
        self.began, self.first_step = time.time(), self._step()
        for number in range(1, self.options.faults + 1):
            await self._more_or_fewer_nodes()
            name = self._chance.choice(FAULTS)
            self.faults[name] += 1
            await self._fault(name)
            await asyncio.sleep(max(0.0, self.began + number * self.options.every - time.time()))
            await self._note()
            if number % TOLD_EVERY == 0:
                self.tell(Step(text=f"{number} of {self.options.faults} faults, step {self._step()}"))
        self.ended, self.last_step = time.time(), self._step()
        await self._mend()
        await until(self._is_whole, "all replicas")
        await self._note()

    async def trains_until(self, step: int) -> None:
        """Waits until rank 0 has completed a step. The step logs of a long job are too large to be read whole each time.

        A restart that a further fault ends is given up, and followed by another one.
        """
        while (done := self._step()) < step:
            await until(partial(self._has_done, done + 1), f"step {done + 1} of the job, see {self.job_directory / 'logs'}")

    async def _has_done(self, step: int) -> bool:
        return self._step() >= step

    # ---- faults

    async def _fault(self, name: str) -> None:
        record = self._last(self._chance.randrange(RANKS))
        if name == "node":
            await self.cluster.take_down(record.node)
        elif name == "sub-health":
            await self.cluster.degrade(record.node, "80E18005", "NPU link is degraded")
        elif name == "pod":
            _send(signal.SIGKILL, processes_of(record.pod_uid))
        else:
            pids = [record.pid]
            if name == "two ranks":
                pids.append(self._last((record.rank + 1) % RANKS).pid)
            if name == "control plane":
                members = (self._stack.members[one].process for one in ("control", "gateway"))
                pids += [process.pid for process in members if process]
            _send(signal.SIGSTOP if name == "freeze" else signal.SIGKILL, pids)

    async def _more_or_fewer_nodes(self) -> None:
        """Brings back all nodes, and takes down as many of those without a pod of the job as chance says."""
        await self._mend()
        used = {pod.spec.node_name for pod in await self.cluster.pods(self.job_id)}
        idle = [name for node in await self.cluster.nodes() if (name := node.metadata.name) not in used]
        for name in idle[self._chance.randrange(SPARE_NODES + 1) :]:
            await self.cluster.take_down(name)

    async def _mend(self) -> None:
        for node in await self.cluster.nodes():
            await self.cluster.bring_up(node.metadata.name)
            await self.cluster.heal(node.metadata.name)

    # ---- what is seen

    def _log(self, rank: int) -> Path:
        return self.job_directory / "steps" / f"rank-{rank:05d}.jsonl"

    def _step(self) -> int:
        """Returns the last step that rank 0 has completed. 0: none."""
        path = self._log(0)
        return self._last(0).step if path.exists() and last_lines(path) else 0

    def _last(self, rank: int) -> StepRecord:
        return StepRecord.model_validate_json(last_lines(self._log(rank))[-1])

    async def _note(self) -> None:
        """Keeps the incidents that the job's workflow still has."""
        self.seen |= {one.number: one for one in (await self._status()).state.history}

    async def _is_whole(self) -> bool:
        status = await self._status()
        return status.state.small is None and status.running is None

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the faults, the incidents by the mode that ended them, and the speed while faults happened."""
        ended = defaultdict[str, list[float]](list)
        for one in self.seen.values():
            ended[f"{one.ladder[-1].mode}: {one.verdict}" if one.ladder else str(one.verdict)].append(one.seconds)
        full_speed = (self.ended - self.began) * 1000 / STEP_MS
        return {"faults": self.faults, "ended": ended, "speed": (self.last_step - self.first_step) / full_speed}


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended with another one
            continue


async def run(options: MarathonOptions) -> dict[str, Any]:
    """Returns the results of one job."""
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as directory:
        async with running(Path(directory), Machine(options.nodes, 1)) as stack:
            return await Marathon(options, stack, Path(directory), _tell).run()


def _tell(step: Step) -> None:
    """Prints the progress of the faults. What the demo tells beside them is of single steps."""
    if "faults" in step.text:
        console.print(step.text, style="dim")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000, help="faults (default: 1000)")
    parser.add_argument("--every", type=float, default=15, help="seconds between two faults (default: 15)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the faults and of the job (default: 7)")
    chosen = parser.parse_args()
    most = int(chosen.faults * chosen.every * 1000 / STEP_MS) + 200
    found = asyncio.run(run(MarathonOptions(faults=chosen.faults, every=chosen.every, seed=chosen.seed, steps=most)))
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")
    console.print("Faults: " + ", ".join(f"{number} {name}" for name, number in sorted(found["faults"].items())) + "\n")
    console.print("| last mode and verdict | incidents | median s | p95 s | worst s |\n|---|---|---|---|---|")
    for name, seconds in sorted(found["ended"].items(), key=lambda entry: -len(entry[1])):
        console.print(f"| {name} | {len(seconds)} | {median(seconds):.2f} | {p95(seconds):.2f} | {max(seconds):.2f} |")
    equal = "equal" if found["parameters_equal"] else "NOT equal"
    seconds = {Bucket(name): spent for name, spent in found["seconds"].items()}
    there = sum(seconds.values()) - seconds.get(Bucket.MISSING, 0.0)
    console.print("\n| use, by the job's account | share of the time |\n|---|---|")
    for bucket, spent in sorted(seconds.items(), key=lambda entry: -entry[1]):
        if spent:
            console.print(f"| {bucket} | {spent / sum(seconds.values()):.1%} |")
    console.print(
        f"\nTrained: {seconds.get(Bucket.TRAINING, 0.0) / there:.1%} of the accelerator seconds that were there; "
        f"{found['speed']:.1%} of the steps at full pace."
    )
    console.print(f"Steps lost: {found['steps_lost']}. Final parameters: {equal} to those of an undisturbed run.")


if __name__ == "__main__":
    main()
