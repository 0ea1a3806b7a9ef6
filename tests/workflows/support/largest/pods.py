"""Largest values of activities for pods, and of the decision about spare nodes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.pods import PodActivities
from rekindle.model.activities.pods import (
    NewPodsRequest,
    OldPodsRequest,
    Restart,
    StartRequest,
    StopRequest,
)
from rekindle.model.bounds import fitting
from rekindle.model.cluster import PodPhase
from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.spares import (
    MOST_AVOIDED,
    MOST_AVOIDED_BYTES,
    MOST_CLAIMS,
    MOST_FREE,
    MOST_PLACED,
    SpareAnswer,
    SpareClaim,
    SpareClaims,
    SpareQuestion,
    SpareView,
    SpareWish,
)
from rekindle.policy.modes.eligibility import MOST_REPLACED
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.workflows.support.largest.common import NOW, TEXT, a_name


async def answers(job: Job, phase: PodPhase) -> list[Any]:
    """Returns the results of the activities for all pods of a job in one phase."""
    cluster = ScriptedCluster(job, nodes=job.pods)
    for pod in list(cluster.pods_by_name.values()):
        cluster._put(pod.model_copy(update={"status": pod.status.model_copy(update={"phase": phase, "message": TEXT})}))
    pods = PodActivities(cluster)
    restart = Restart(job_id=job.id, generation="g" * 36)
    old = restart.model_copy(update={"youngest": datetime.now(UTC)})
    new = NewPodsRequest(restart=restart, pods=job.pods)
    calls: list[tuple[Callable[..., Any], Any]] = [
        (pods.await_new_running, new),
        (pods.look_at_new_pods, new),
        (pods.await_old_gone, OldPodsRequest(restart=old, within=timedelta(0))),
        (pods.ensure_pods, StartRequest(job_id=job.id, generation="g", avoid_nodes=())),
        (pods.delete_pods, StopRequest(job_id=job.id, grace_seconds=0)),
    ]
    return [await ActivityEnvironment().run(call, request) for call, request in calls]


def spare_wish() -> SpareWish:
    nodes = fitting([a_name(number) for number in range(MOST_AVOIDED)], MOST_AVOIDED_BYTES, MOST_AVOIDED)
    return SpareWish(job=TEXT, incident=1, mode=Mode.PROCESS_RESCHEDULING, pods=MOST_REPLACED, avoid_nodes=nodes, demands=TEXT)


def spares_asked_for(job: Job) -> list[Any]:
    """Returns what the workflow that decides about spare nodes gets, answers and keeps."""
    claim = SpareClaim(job_id=job.id, **spare_wish().model_dump(exclude={"priority"}), since=NOW, until=NOW)
    free = {a_name(number): 8 for number in range(MOST_FREE)}
    view = SpareView(free=free, placed={f"{number:036}": 2 for number in range(MOST_PLACED)})
    return [
        SpareQuestion(claim=claim, view=view),
        claim,
        SpareAnswer(reason=TEXT),
        SpareClaims(claims=(claim,) * MOST_CLAIMS),
    ]
