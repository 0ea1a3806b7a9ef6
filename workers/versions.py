"""Version of the control worker, and its part in upgrades: it takes over, moves jobs to its version, and drains
(docs/decisions/0012).

Used by `workers.control` only.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowExecution
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

import rekindle
import workflows
from rekindle import deployment
from rekindle.deployment import NEVER, Deployment, Version
from rekindle.errors import Unavailable
from rekindle.ids import DEPLOYMENT, Signals, Workflows
from workers.rollout import LookAtRollout, Rollout, unknown

RUN_BY_WORKFLOWS = (
    *("absent.py", "arguments.py", "current_span.py", "errors.py", "ids.py", "otlp.py", "span_exporter.py", "spans.py"),
    *("temporal.py", "worker_plugin.py", "model", "policy"),
)
"""Parts of `rekindle` that decide what a workflow does next, in addition to the folder `workflows`: what that imports, and the
plugin through which each of its commands goes."""

MOVES_ON = (
    *(Workflows.TRAINING_JOB, Workflows.LINK_FAILOVER, Workflows.SWITCH_UPGRADE, Workflows.NODE_RECORD),
    Workflows.SPARES,
)
"""Types of long-lived workflows, which move to another version when they are woken while idle. All others end on their own."""

PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds before a change is retried, or looked for again. The pause doubles from the first to the second value: a server limits
how often it is asked about a deployment."""

TAKE_OVER_LIMIT = 60.0
"""Seconds within which the server must make a version current: it takes 2 to 5 for the first one of a deployment."""

FIRST_WAKING, LONGEST_WAKING = timedelta(seconds=15), timedelta(minutes=10)
"""Pause before a workflow that has not moved is signalled again; it doubles each time. A job moves after its recovery, which may
take long, and each signal adds events to its history."""

EVERY = 5.0
"""Seconds between two checks of the other versions."""

CONFIRMED = timedelta(seconds=20)
"""Time for which a version must be without workers before it counts as lost."""

UNANSWERED = timedelta(seconds=60)
"""Time for which a draining worker stays if the server does not say what runs on its version."""

NOT_YET = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.ABORTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.RESOURCE_EXHAUSTED,
)
"""Errors to retry: the server has not seen our worker yet or is asked too often, or another worker has changed the deployment at
the same time."""

logger = logging.getLogger("versions")


def build_of_code() -> str:
    """Returns the distribution's version and a digest of the code that workflows run: equal code has the same build
    everywhere."""
    package = Path(rekindle.__file__).parent
    digest = digest_of([Path(workflows.__file__).parent, *(package / name for name in RUN_BY_WORKFLOWS)])
    return f"{rekindle.__version__}-{digest}"


def digest_of(roots: Iterable[Path]) -> str:
    """Returns a digest of the names and contents of Python files: all files in the given folders, and the given files."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            name = path.relative_to(root.parent).as_posix().encode()
            digest.update(b"%d %s %d " % (len(name), name, path.stat().st_size) + path.read_bytes())
    return digest.hexdigest()[:12]


def deployment_config(build_id: str) -> WorkerDeploymentConfig:
    """Returns the deployment configuration: workflows stay on the version on which they began, except as `TrainingJob.run`
    says."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(DEPLOYMENT, build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


class Silences:
    """Detects versions that have lost their workers. The server forgets its pollers when it restarts, so that a version counts
    only after it was without workers for a while."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}

    def confirm(self, version: Version, now: datetime) -> bool:
        """Returns whether the version has had no worker at this check and at every check since `CONFIRMED` ago."""
        if version.has_workers(now):
            self._since.pop(version.build_id, None)
            return False
        return now - self._since.setdefault(version.build_id, now) >= CONFIRMED


class ServerClock:
    """Clock of the server, by which it says when workers asked for work.

    Clocks of nodes differ, and one that is ahead by a minute would find all other versions without workers.
    """

    def __init__(self) -> None:
        self._time, self._at = NEVER, 0.0

    def now(self, known: Deployment) -> datetime:
        """Returns the time. It is at least that of the last request for work, which may be our own, and goes on from there."""
        at = time.monotonic()
        self._time = max(known.asked_at, self._time + timedelta(seconds=at - self._at))
        self._at = at
        return self._time


class Upgrades:
    """Tasks of one control worker in upgrades.

    Args:
        alone: no other control worker serves this namespace, so that other versions have no workers, even if Temporal lists some.
        rollout: reads the revisions of the worker's Deployment. When the worker becomes what is rolled out, its version becomes
            current, also if it was so before. A worker of another revision does not take over.
    """

    def __init__(self, client: Client, build_id: str, *, alone: bool = False, rollout: LookAtRollout = unknown) -> None:
        self._client, self._build_id, self._alone, self._rollout = client, build_id, alone, rollout
        self._silences, self._clock = Silences(), ServerClock()
        self._heeded = ""
        """Latest revision as which this worker was current. Each rollout is heeded once, so that a person may choose another
        version afterwards."""
        self._wakings: dict[str, tuple[datetime, timedelta]] = {}
        """Next signal to each run that has not moved, and the pause after it. A busy one moves when it is idle."""

    async def take_over(self) -> None:
        """Makes our version current if it should be; returns as soon as it is, or as another version rightly is.

        Raises:
            Unavailable: the server does not do so; the message has its answer.
        """
        problem, pause = "no answer", PAUSE
        try:
            async with asyncio.timeout(TAKE_OVER_LIMIT):
                while True:
                    problem = await self._try_to_take_over()
                    if not problem:
                        return
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        except TimeoutError:
            raise Unavailable(f"version {self._build_id} could not be made current: {problem}") from None

    async def _try_to_take_over(self) -> str:
        try:
            rollout = await self._rollout()
            known = await deployment.read_deployment(self._client)
            if known.current == self._build_id:
                self._heed(rollout)
                return ""
            if not (self._alone or self._is_due(known, rollout)):
                logger.warning(
                    "other version kept as current: `rekindle versions use` changes that",
                    extra={"version": self._build_id, "current": known.current},
                )
                return ""
            await deployment.make_current(self._client, self._build_id, known.token)
        except RPCError as error:
            if error.status not in NOT_YET:
                raise
            return error.message
        self._heed(rollout)
        logger.info("version made current", extra={"version": self._build_id, "before": known.current})
        return ""

    def _is_due(self, known: Deployment, rollout: Rollout | None) -> bool:
        """Returns whether the Deployment rolls our version out, and it was not current since. Without a Deployment, or if its
        revisions are not known: whether our version is new."""
        if rollout is None or not known.current:
            return known.yields_to(self._build_id)
        return rollout.is_own and rollout.latest != self._heeded

    def _heed(self, rollout: Rollout | None) -> None:
        if rollout and rollout.is_own:
            self._heeded = rollout.latest

    async def keep(self) -> None:
        """Takes care of workflows on other versions, and takes over from a version without workers, until it is cancelled."""
        while True:
            try:
                await self._look()
            except RPCError as error:
                logger.warning("other versions not listed", extra={"error": error.message})
            await asyncio.sleep(EVERY)

    async def _look(self) -> None:
        rollout = await self._rollout()
        known = await deployment.read_deployment(self._client)
        if known.current != self._build_id:
            self._wakings.clear()
            if self._is_due(known, rollout) or self._has_no_workers(known.version(known.current), known):
                await deployment.make_current(self._client, self._build_id, known.token)
                self._heed(rollout)
                logger.warning("version taken over", extra={"version": self._build_id, "before": known.current})
            return
        self._heed(rollout)
        self._wakings = {run_id: waking for run_id, waking in self._wakings.items() if waking[0] + LONGEST_WAKING > _now()}
        for other in known.versions:
            if not (other.current or other.drained):
                await self._look_after(other, known)

    async def _look_after(self, other: Version, known: Deployment) -> None:
        """Moves workflows to our version if theirs has no workers. Otherwise wakes the long-lived ones.

        The server announces our version to a woken workflow with its next task, and the workflow moves as soon as it is idle.
        """
        lost = self._has_no_workers(other, known)
        for workflow in await deployment.list_open(self._client, other.build_id):
            if lost:
                await self._move(workflow, other)
            elif workflow.workflow_type in MOVES_ON and self._is_to_be_woken(workflow.run_id):
                await self._wake(workflow)

    def _is_to_be_woken(self, run_id: str) -> bool:
        return run_id not in self._wakings or _now() >= self._wakings[run_id][0]

    async def _move(self, workflow: WorkflowExecution, other: Version) -> None:
        words = {"workflow": workflow.id, "from": other.build_id}
        try:
            await deployment.move(self._client, workflow, self._build_id)
        except RPCError as error:  # the others are still moved, and this one at the next check
            logger.warning("recovery not moved to another version", extra={**words, "error": error.message})
        else:
            logger.warning("recovery moved, its version has no worker", extra=words)

    def _has_no_workers(self, version: Version, known: Deployment) -> bool:
        return self._alone or self._silences.confirm(version, self._clock.now(known))

    async def _wake(self, workflow: WorkflowExecution) -> None:
        try:
            await self._client.get_workflow_handle(workflow.id, run_id=workflow.run_id).signal(Signals.UPGRADED)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has moved on already
                logger.warning("workflow not signalled", extra={"workflow": workflow.id, "error": error.message})
                return
        pause = self._wakings[workflow.run_id][1] if workflow.run_id in self._wakings else FIRST_WAKING
        self._wakings[workflow.run_id] = (_now() + pause, min(2 * pause, LONGEST_WAKING))

    async def drain(self) -> None:
        """Returns when our workers are not needed. That is at once if ours is the current and only version with workers, since
        another worker of it goes on; otherwise when nothing runs on it any more."""
        unanswered_since, pause = None, PAUSE
        while True:
            try:
                if not await self._is_needed():
                    return
                unanswered_since = None
            except RPCError as error:
                unanswered_since = unanswered_since or _now()
                if _now() - unanswered_since >= UNANSWERED:
                    logger.warning("workflows of this version not counted", extra={"error": error.message})
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _is_needed(self) -> bool:
        known = await deployment.read_deployment(self._client)
        others = [version for version in known.versions if version.build_id != self._build_id]
        if self._alone or not any(other.current or other.has_workers(self._clock.now(known)) for other in others):
            return False
        return await deployment.count_open(self._client, self._build_id) > 0


def _now() -> datetime:
    return datetime.now(UTC)
