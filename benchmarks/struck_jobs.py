"""Long job with repeated faults on a running stack. For `benchmarks.recoveries`."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hot_switch import NEVER_ASIDE
from rekindle.cli.demos.scenario import RANKS, STEP_MS, Options, manifest
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.cluster import JobObject, Pod
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import RANK_INDEX, RECOVER_STRATEGY, SUB_HEALTHY_STRATEGY
from rekindle.model.manifest import parse
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import StepRecord

PODS = 2
RANKS_PER_POD = RANKS // PODS
A_ROUND = 100
"""Steps of a job per fault."""
BETWEEN = 12
"""Least number of undisturbed steps between two faults."""
AT_PACE = 3
"""Steps of the usual duration before a fault, after slower ones."""
FIRST_IN_STEP, EVERY = 20, 30
"""First step in which a job injects a fault into itself, and steps between two such faults."""
SLOW_MS = 1000.0
"""Duration of a step in milliseconds, when a job would otherwise run out of steps before its last fault."""
PATIENCE = 300.0
"""Time limit in seconds for one event; a row in which it does not happen is aborted."""
TAIL = 4096
"""Number of bytes at the end of a step log that are read for its last line."""


class JobOptions(Options):
    """Options of the job of a row."""

    row_spares: int = 0
    hot_switch: bool = False
    allowed: str = ""
    in_steps: tuple[tuple[int, int], ...] = ()
    """Ranks and the steps in which they fail, in pairs."""
    raises: str = ""

    @property
    def spares(self) -> int:
        """Number of loaded processes that wait for a rank in each pod."""
        return self.row_spares

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job."""
        return {SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH.value} if self.hot_switch else {}

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        return {RECOVER_STRATEGY: self.allowed} if self.allowed else {}

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment of the job's pods."""
        faults = [{"fault": self.raises, "rank": rank, "step": step} for rank, step in self.in_steps]
        return {"REKINDLE_INJECT": json.dumps(faults)} if faults else {}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job."""
        return {**super().limits, **NEVER_ASIDE}

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Expected results of a demo: none, as this is not a demo."""
        return ()


@dataclass(frozen=True)
class Row:
    name: str
    mode: Mode
    strike: "Strike"
    reach: Mapping[str, str]
    """Measured values and their targets."""
    spares: int = 0
    standbys: int = 0
    raises: str = ""
    """Fault that the job injects into itself in some of its steps."""
    allowed: str = ""
    linked: bool = False
    """True if the nodes have networks of their own."""

    def options(self, rounds: int, seed: int) -> JobOptions:
        places = tuple((number % RANKS, FIRST_IN_STEP + number * EVERY) for number in range(rounds)) if self.raises else ()
        return JobOptions(
            seed=seed,
            steps=steps(rounds),
            row_spares=self.spares,
            hot_switch=self.mode is Mode.HOT_SWITCH,
            allowed=self.allowed,
            in_steps=places,
            raises=self.raises,
        )


def steps(rounds: int) -> int:
    """Returns the number of steps of each job, which is the same for all rows, so that one undisturbed run serves all."""
    return FIRST_IN_STEP + A_ROUND * (rounds + 1)


class Trial:
    """Measurement of one row on the running stack."""

    def __init__(self, row: Row, rounds: int, stack: Stack, rekindle: Rekindle, cluster: ClusterClient) -> None:
        self.row, self.rounds, self.stack = row, rounds, stack
        self.rekindle, self.cluster = rekindle, cluster
        self.number = 0
        """Index of the current fault."""
        self.job: JobObject
        self.directory = Path()
        self._pace = Path(stack.addresses.state_dir) / f"pace-{time.monotonic_ns()}"
        self._steps = steps(rounds)

    async def run(self, seed: int) -> list[tuple[float, Incident]]:
        """Runs the job with its faults. Returns the time of each fault and the incident that followed."""
        options = self.row.options(self.rounds, seed)
        wanted = parse(_with_standbys(manifest(options, STEP_MS, self._pace), self.row.standbys))
        self.job = await self.cluster.submit(wanted)
        self.directory = Path(self.job.status.directory)
        found: list[tuple[float, Incident]] = []
        try:
            await self.until(lambda: self.steps() > BETWEEN, "training")
            for number in range(self.rounds):
                self.number = number
                await self._calm()
                struck = await self.row.strike(self)
                found.append((struck, await self.incident(struck)))
                await self._heal()
            self._set_pace(0)
            await self.until(lambda: self.steps() >= self._steps, "the end of training")
            await self._ends()
            return found
        finally:
            await self.cluster.delete_job(self.job.metadata.uid, grace=0)
            await self._heal()
            await self._is_gone()

    # ---- between two strikes

    async def _calm(self) -> None:
        """Waits until training goes on, no recovery runs, and spares and standbys are ready. Jobs that fail by themselves do
        not wait."""
        if self.row.raises:
            return
        goal, left = self.steps() + BETWEEN, self._steps - self.steps()
        self._set_pace(STEP_MS if left > (self.rounds - self.number + 1) * 2 * BETWEEN else SLOW_MS)
        await self.until(lambda: self.steps() >= goal, "training goes on")
        if self.row.spares:
            await self.until(self._spares_wait, "loaded spares")
        if self.row.standbys:
            self._set_pace(SLOW_MS)  # a standby needs ten seconds and more
            await self._standbys_wait()
        self._set_pace(STEP_MS)
        goal = self.steps() + AT_PACE
        await self.until(lambda: self.steps() >= goal, "steps of their usual duration")

    def _spares_wait(self) -> bool:
        logs = [path.read_text() for path in (self.directory / "logs").glob("gpt-worker-*.log")]
        return all(log.count("spare parked") == log.count("spare assigned to a rank") + 1 for log in logs)

    async def _standbys_wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(map(self._is_ready, await self.cluster.pods(self.job.metadata.uid))):
                await asyncio.sleep(0.2)

    def _is_ready(self, pod: Pod) -> bool:
        """Returns whether the pod is a standby that has loaded."""
        log = self.directory / "logs" / f"{pod.metadata.name}.{pod.metadata.uid[:8]}.log"
        standby = pod.metadata.annotations.get("podType") == "standby"
        return standby and log.exists() and log.read_text().count("spare parked") >= RANKS_PER_POD

    async def _heal(self) -> None:
        for node in await self.cluster.nodes():
            await self.cluster.heal(node.metadata.name)

    async def _is_gone(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.job.metadata.uid in [job.metadata.uid for job in await self.cluster.jobs()]:
                await asyncio.sleep(0.1)

    def _set_pace(self, milliseconds: float) -> None:
        scratch = self._pace.with_suffix(".new")
        scratch.write_text(f"{milliseconds:.0f}")
        scratch.replace(self._pace)

    async def incident(self, struck: float) -> Incident:
        """Returns the incident that followed a fault. It is queried only when training goes on, as a query would affect the
        measurement."""
        goal = self.steps() + 3
        await self.until(lambda: self.steps() >= goal, f"training goes on behind strike {self.number + 1}")
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await self.rekindle.status(self.job.metadata.uid)
                ended = [one for one in status.state.history if one.started_at.timestamp() >= struck]
                if ended and status.running is None:
                    return ended[-1]
                await asyncio.sleep(0.2)

    async def _ends(self) -> None:
        finals = [self.directory / "final" / f"rank-{rank:05d}.bin" for rank in range(RANKS)]
        await self.until(lambda: all(path.exists() for path in finals), "final parameters")
        await self.until(lambda: not lives(self.latest(0).pid), "the end of rank 0")  # which has written its file by then

    # ---- what strikes ask for

    def latest(self, rank: int) -> StepRecord:
        """Returns the last step that a rank completed."""
        lines = last_lines(self.directory / "steps" / f"rank-{rank:05d}.jsonl")
        return StepRecord.model_validate_json(lines[-1])

    def steps(self) -> int:
        """Returns the number of the last step that rank 0 has completed."""
        path = self.directory / "steps" / "rank-00000.jsonl"
        lines = last_lines(path) if path.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    async def pod(self, pod_rank: int) -> Pod:
        pods = await self.cluster.pods(self.job.metadata.uid)
        return next(pod for pod in pods if pod.metadata.annotations.get(RANK_INDEX) == str(pod_rank))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition. Raises TimeoutError with a message that says what was waited for."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"{self.row.name}: waited {PATIENCE:g} s for {what}; logs are in {self.directory}") from None


Strike = Callable[[Trial], Awaitable[float]]
"""Function that injects a fault, and returns its time in seconds since the epoch."""


def _with_standbys(text: str, standbys: int) -> str:
    job = json.loads(text)
    if standbys:
        job["spec"]["standbys"] = standbys
    return json.dumps(job)


def last_lines(path: Path) -> list[str]:
    """Returns the last complete lines of a log."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        lines = file.read().decode().splitlines(keepends=True)
    return [line for line in lines if line.startswith("{") and line.endswith("}\n")]


def lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
