"""Base of the runs of `rekindle demo`: a real job in which something happens, and an undisturbed run to compare it with."""

import asyncio
import json
import os
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from rekindle import ids
from rekindle.cli.demos import measure
from rekindle.cli.stack import Stack, dying_with_parent
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.errors import NotFound, RekindleError, Unavailable
from rekindle.model.base import Value
from rekindle.model.cluster import PodPhase
from rekindle.model.incident import Incident
from rekindle.model.job import Job, JobId
from rekindle.model.manifest import parse
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, JobStatus
from rekindle.policy.account import summary
from rekindle.policy.detection.pod_ranks import is_standby
from rekindle.temporal import connect

RANKS = 4
CHECKPOINT_EVERY = 10
STEP_MS = 60.0
"""Minimum duration of a step in milliseconds.

It leaves the processors as free as training on accelerators would, so that other processes can load meanwhile.
"""

DRAG_MS = 2000.0
"""Minimum duration of a step in milliseconds when steps would run out before the incident ends.

A step lasts as long as a process loads, if that is more: a slow machine recovers slowly too.
"""
PATIENCE = 300.0
"""Seconds for which the demo waits for one event before it gives up."""

LOADED = "spare parked"
"""Line that a launcher writes when a process without a rank has loaded."""

RESTART = (Mode.JOB_RESCHEDULING, Outcome.RECOVERED)


class Options(Value, ABC):
    """Options of a demo. Each demo has its own class, with what may happen in it."""

    seed: int = 7
    steps: int = 200
    pods: int = 2
    at_step: int = 15
    no_spare: bool = False
    standby: bool = False

    @property
    def spare_nodes(self) -> int:
        """Number of spare nodes, on which backup pods may start."""
        return 0 if self.no_spare else 1

    @property
    def nodes(self) -> int:
        """Number of nodes of the cluster."""
        return self.pods + self.spare_nodes + int(self.standby)

    @property
    def checkpoint_every(self) -> int:
        """Number of steps between two checkpoints. 0: none is written."""
        return CHECKPOINT_EVERY

    @property
    def steps_after(self) -> int:
        """Minimum number of steps after the one at which the first fault happens. Training must not end before the incident."""
        return 5

    @property
    def script(self) -> str:
        """Module that is trained."""
        return "rekindle_training.examples.gpt"

    @property
    def arguments(self) -> list[str]:
        """Arguments of the module, also of its undisturbed run."""
        return [f"--steps={self.steps}", f"--seed={self.seed}", f"--checkpoint-every={self.checkpoint_every}"]

    @property
    def links(self) -> bool:
        """True if each node has its own network with two links."""
        return False

    @property
    def incidents(self) -> int:
        """Number of incidents of the job."""
        return 1

    @property
    def spares(self) -> int:
        """Number of loaded processes in each pod that wait for a rank."""
        return 0

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job."""
        return {}

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        return {}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        return {}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job: seconds instead of minutes, where the demo waits for a limit."""
        return {"restart": 120, "podsRunning": 60}

    @property
    @abstractmethod
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether the run tried the expected modes with the expected outcomes, and ended with the parameters of an
        undisturbed run."""
        tried = tuple((step["mode"], step["verdict"]) for step in result["ladder"])
        return tried == self.expected and bool(result["parameters_equal"])


class Step(Value):
    """Progress of a demo, for its observer."""

    text: str
    step: int = 0


def manifest(options: Options, step_ms: float = STEP_MS, pace: Path | None = None) -> str:
    """Returns the manifest of the job, as a user would write it.

    Args:
        pace: once this file is there, it says how many milliseconds a step takes.
    """
    per_pod = RANKS // options.pods
    command = ["rekindle-train", "--start-method=fork", "--nnodes", str(options.pods), "--nproc-per-node", str(per_pod)]
    command += [f"--spares={options.spares}"] if options.spares else []
    command += ["-m", options.script, *options.arguments, f"--step-ms={step_ms:.0f}"]
    command += [f"--step-ms-file={pace}"] if pace else []
    return json.dumps(
        {
            "apiVersion": "rekindle.io/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "gpt", "labels": options.labels, "annotations": options.annotations},
            "spec": {
                "pods": options.pods,
                "ranksPerPod": per_pod,
                "command": command,
                "env": options.environment,
                "limits": options.limits,
                "standbys": int(options.standby),
            },
        }
    )


Asked = TypeVar("Asked", bound=Options)


class Scenario(ABC, Generic[Asked]):
    """Run of a demo on a running stack. A subclass defines what happens to the job, and what is reported besides."""

    def __init__(self, options: Asked, stack: Stack, directory: Path, tell: Callable[[Step], None]) -> None:
        self.options, self._stack, self._directory, self.tell = options, stack, directory, tell
        self.cluster = ClusterClient(Path(stack.addresses.socket))
        self._rekindle: Rekindle | None = None
        self._step_ms, self._drag_ms = STEP_MS, DRAG_MS
        self._pace = directory / f"pace-{secrets.token_hex(4)}"
        self.job_id = ""
        self.job_directory = directory

    @abstractmethod
    async def strike(self) -> None:
        """Applies the demo's fault or request to the job, after it has trained for a while."""

    def step_ms(self, loading: float) -> float:
        """Returns the minimum duration of a step, in milliseconds.

        Args:
            loading: seconds until a process of the undisturbed run trained: a slow machine loads slowly.
        """
        return STEP_MS

    async def meanwhile(self, running: Mode | None) -> None:
        """Does what else happens while the incident goes on. Called repeatedly; the default does nothing.

        Args:
            running: the mode that runs now.
        """

    def counts(self, incident: Incident) -> bool:
        """Returns whether an incident is one of those that the demo causes."""
        return True

    def since(self, incident: Incident) -> float:
        """Returns when the fault happened, in seconds since the epoch, as the watcher saw it."""
        return _seen(incident).timestamp()

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Returns results that only this demo has."""
        return {}

    async def run(self) -> dict[str, Any]:
        """Runs the whole demo, and returns what `--output json` prints."""
        self._rekindle = Rekindle(await connect(self._stack.addresses.temporal, started_here=True))
        try:
            reference = await self._reference()
            job = await self.cluster.submit(parse(manifest(self.options, self._step_ms, self._pace)))
            self.job_id, self.job_directory = job.metadata.uid, Path(job.status.directory)
            await self.trains_until(self.options.at_step)
            if self.options.standby:
                await until(self.stands_by, "a standby")
            await self.strike()
            incidents = await self.concluded(self.options.incidents)
            self._tell_pace(0)
            await self.trains_until(self.options.steps)
            await self._ends()
            return await self._result(incidents, reference)
        finally:
            await self.tidy()
            await self.cluster.close()

    async def tidy(self) -> None:
        """Resets the stack for another run: its nodes are healthy again, and the job is deleted."""
        for node in await self.cluster.nodes():
            await self.cluster.heal(node.metadata.name)
        if self.job_id:
            await self.cluster.delete_job(self.job_id, grace=0)
            await until(self._is_gone, "the end of the job")

    async def stands_by(self) -> bool:
        """Returns whether all processes of a standby have loaded."""
        self.tell(Step(text=f"a standby loads; training, step {self._drag_out()} of {self.options.steps}"))
        for pod in await self.cluster.pods(self.job_id):
            if is_standby(pod) and pod.status.phase is PodPhase.RUNNING:
                log = "".join([piece async for piece in self.cluster.logs(pod.metadata.name)])
                return log.count(LOADED) >= RANKS // self.options.pods
        return False

    async def _is_gone(self) -> bool:
        try:
            await self.cluster.job(self.job_id)
        except NotFound:
            return True
        return False

    # ---- the undisturbed run

    async def _reference(self) -> Path:
        """Runs the same training undisturbed, in separate processes, once for each script, seed and length. Returns its
        directory."""
        script = self.options.script.rpartition(".")[2]
        directory = self._directory / f"undisturbed-{script}-{self.options.seed}-{self.options.steps}"
        if not directory.exists():
            self.tell(Step(text="undisturbed run, to compare with"))
            await run_undisturbed(directory, self.options)
        records = measure.read_steps(directory)
        loading = min(record.start for record in records) - float((directory / "began").read_text())
        self._step_ms, self._drag_ms = self.step_ms(loading), max(DRAG_MS, 1000 * loading)
        return directory

    # ---- the disturbed one

    async def trains_until(self, step: int) -> None:
        """Waits until every rank has completed a step, by the step logs, as long as there is progress."""
        if step > self.options.steps:
            raise Unavailable(f"training ended before all had happened; give it more than {self.options.steps} steps")
        done = -1

        async def goes_on() -> bool:
            nonlocal done
            before, done = done, measure.last_step(measure.read_steps(self.job_directory))
            self.tell(Step(text=f"training, step {done} of {self.options.steps}", step=done))
            await self._raise_if_given_up()
            return done >= step or done > before

        while done < step:
            await until(goes_on, f"step {done + 1} of the job, see {self.job_directory / 'logs'}")

    async def _raise_if_given_up(self) -> None:
        history = (await self._status()).state.history if self._rekindle else ()
        for incident in history:
            if incident.verdict is Outcome.GIVEN_UP:
                raise Unavailable(f"the job was given up: {incident.ladder[-1].reason}")

    async def _status(self) -> JobStatus:
        assert self._rekindle is not None
        try:
            return await self._rekindle.status(self.job_id, ended=True)
        except RekindleError:
            return JobStatus(state=JobState.of(Job(id=JobId(self.job_id), name="gpt", pods=1)))

    async def concluded(self, count: int) -> Sequence[Incident]:
        """Returns the first `count` incidents of the job as soon as they have ended."""
        found: list[Incident] = []

        async def have_ended() -> bool:
            status = await self._status()
            found[:] = [one for one in status.state.history if self.counts(one)][:count]
            await self.meanwhile(status.running)
            idle = "the incident ends" if status.state.incidents else "waiting for the decision"
            doing = f"{status.running} runs" if status.running else idle
            done = self._drag_out()
            self.tell(Step(text=f"{doing}; training, step {done} of {self.options.steps}", step=done))
            return len(found) == count

        await until(have_ended, "the end of the incident")
        return found

    def _drag_out(self) -> int:
        """Returns the last step. If steps run out, makes each following one last longer."""
        done = measure.last_step(measure.read_steps(self.job_directory))
        if done > (self.options.at_step + 3 * self.options.steps) / 4 and not self._pace.exists():
            self._tell_pace(self._drag_ms)
        return done

    def _tell_pace(self, milliseconds: float) -> None:
        scratch = self._pace.with_suffix(".new")
        scratch.write_text(f"{milliseconds:.0f}")
        scratch.replace(self._pace)

    async def _ends(self) -> None:
        """Waits until all worker pods have succeeded, so that their final parameters are complete."""

        async def succeeded() -> bool:
            try:
                pods = await self.cluster.pods(self.job_id)
            except NotFound:
                return True
            workers = [pod for pod in pods if "hccl/rankIndex" in pod.metadata.annotations]
            self.tell(Step(text="training ends", step=self.options.steps))
            return all(pod.status.phase in ("Succeeded", "Failed") for pod in workers)

        await until(succeeded, "the end of the job's pods")

    # ---- what came of it

    async def _result(self, incidents: Sequence[Incident], reference: Path) -> dict[str, Any]:
        assert self._rekindle is not None
        first, last, ladder = incidents[0], incidents[-1], [verdict for one in incidents for verdict in one.ladder]
        records = measure.read_steps(self.job_directory)
        job = (await self._rekindle.status(self.job_id, ended=True)).state.job
        workflow_id = ids.recovery_workflow(job, first.number, first.ladder[0].mode)
        accounted = await self._rekindle.account(self.job_id)
        whole = summary.of_job(job.name, job.id, accounted.account)
        return {
            "mode": first.ladder[0].mode.value,
            "verdict": last.verdict.value,
            "reason": ladder[-1].reason,
            "ladder": [{"mode": v.mode.value, "verdict": v.outcome.value, "reason": v.reason} for v in ladder],
            "policy_after": last.policy_after.value,
            "steps": measure.last_step(records),
            "steps_lost": measure.steps_lost(records),
            "parameters_equal": measure.parameters_equal(self.job_directory, reference, RANKS),
            "pause_seconds": round(measure.pause_seconds(records, self.since(first)), 4),
            "first_order_seconds": await self._first_order(_seen(first), workflow_id),
            "goodput": round(whole.goodput, 4),
            "seconds": {share.bucket.value: round(share.seconds, 4) for share in whole.buckets},
            "total_seconds": round(sum(one.seconds for one in incidents), 4),
            "phases": [{"name": p.name, "seconds": p.seconds} for v in ladder for p in v.phases],
            "switched": [rank.model_dump(mode="json") for rank in measure.switched(records)],
            "workflow_id": workflow_id,
            "run_id": (await self._rekindle.temporal.get_workflow_handle(workflow_id).describe()).run_id,
            "temporal_ui": self._stack.addresses.ui,
            "cluster": self._stack.addresses.cluster,
            **self.more(incidents),
        }

    async def _first_order(self, seen: datetime, workflow_id: str) -> float | None:
        """Returns the seconds from the time at which the fault was seen to the first order that was on the stream; None: no order
        was given."""
        assert self._rekindle is not None
        history = await self._rekindle.temporal.get_workflow_handle(workflow_id).fetch_history()
        orders: set[int] = set()
        for event in history.events:
            if event.activity_task_scheduled_event_attributes.activity_type.name == "deliver_order":
                orders.add(event.event_id)
            if event.activity_task_completed_event_attributes.scheduled_event_id in orders:
                return round((event.event_time.ToDatetime(seen.tzinfo) - seen) / timedelta(seconds=1), 4)
        return None


def _seen(incident: Incident) -> datetime:
    """Returns when the first fault of the incident was seen. If no fault has that time, returns when one was accepted."""
    times = [time for fault in incident.faults if (time := fault.seen_at or fault.accepted_at)]
    return min(times, default=incident.started_at)


async def run_undisturbed(directory: Path, options: Options) -> None:
    """Runs the same training undisturbed, in separate processes.

    Raises:
        Unavailable: it did not end well; the message has the path of its log.
    """
    directory.mkdir(parents=True)
    command = [str(Path(sys.executable).parent / "rekindle-train"), "--standalone", "--start-method=fork"]
    command += ["--nproc-per-node", str(RANKS)]
    command += ["-m", options.script, *options.arguments]
    (directory / "began").write_text(str(time.time()))
    log = directory / "log.txt"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *dying_with_parent(command),
            env={**os.environ, "REKINDLE_JOB_DIR": str(directory)},
            stdout=output,
            stderr=output,
        )
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    if code:
        raise Unavailable(f"the undisturbed run ended with code {code} (log: {log})")


async def until(condition: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while True:  # polling, as these are files of other processes
                await asyncio.sleep(0.2)  # sleeps first, so that the check does not compete with what it waits for
                if await condition():
                    return
    except TimeoutError:
        raise Unavailable(f"waited {PATIENCE:g} s in vain for {what}") from None
