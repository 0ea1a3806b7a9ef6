"""Sizes, names, jobs, pods and faults, each as large as it may be."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rekindle.model.cluster import JobView, PodPhase
from rekindle.model.fault import (
    TRAINING_SIDE,
    Fault,
    FaultKind,
    FaultyRanks,
)
from rekindle.model.job import Job, JobId
from rekindle.model.situation import PodRef
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE, LONGEST_TEXT, MOST_PODS, MOST_RANKS, MOST_STANDBYS
from tests.support.job_views import job as a_job_object
from tests.support.job_views import node as a_node
from tests.support.job_views import pod as a_pod

NOW = datetime(2026, 7, 27, 12, 0, tzinfo=UTC)


TEXT = "x" * LONGEST_TEXT


NOTE = "x" * LONGEST_NOTE


FAILED_PODS = 1_250


STORM = "s" * LONGEST_NOTE


NAME = "a-training-job-with-a-name-of-the-usual-length-of-large-ones"


def a_name(number: int) -> str:
    """Returns a name as long as Kubernetes allows."""
    return f"{NAME}-worker-{number:05}".ljust(LONGEST_NAME, "x")


JOBS = {
    "10,000 ranks, 2 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS, ranks_per_pod=2),
    "10,000 ranks, 8 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_RANKS // 8, ranks_per_pod=8),
    "5,000 pods": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS),
}


def pod_ref(number: int) -> PodRef:
    return PodRef(name=a_name(number), uid="u" * 36, node=a_name(number), rank=number)


def long_fault(job: Job, number: int, kind: FaultKind, source: str = "test") -> Fault:
    """Returns a fault with every field as large as possible."""
    return Fault(
        id=f"{'u' * 36}/{number}/{'c' * 80}/2026-01-01T00:00:00+00:00",
        kind=kind,
        pod_ranks=(number,),
        ranks=tuple(job.layout.ranks_of(number)),
        node=a_name(number),
        pod=a_name(number),
        pod_uids=("u" * 36,),
        generation="g" * 36,
        code="c" * 80,
        message=TEXT,
        seen_at=NOW,
        source=source,
    )


def process_fault(ranks: Sequence[int]) -> Fault:
    """Returns a fault of processes as the training side reports it."""
    details = (FaultyRanks(ranks=tuple(ranks), device="d" * 64, code="c" * 80),)
    return Fault(id="processes", kind=FaultKind.PROCESS, ranks=tuple(ranks), details=details, message=TEXT, source=TRAINING_SIDE)


def worst_view(job: Job) -> JobView:
    """Returns a job in which a quarter of the pods failed, the nodes of all others are lost and sub-healthy, and all standbys
    failed."""
    failed = dict.fromkeys(range(0, job.pods, 4), PodPhase.FAILED)
    pods = [
        a_pod(
            number,
            f"{number:08x}".ljust(36, "u"),
            name=a_name(number),
            node=a_name(number),
            phase=failed.get(number, PodPhase.RUNNING),
            message=TEXT,
        )
        for number in range(job.pods)
    ]
    ended = {"node": a_name(0), "phase": PodPhase.FAILED, "message": TEXT}
    standbys = [a_pod(None, "u" * 36, name=a_name(number), standby=True, **ended) for number in range(MOST_STANDBYS)]
    nodes = [a_node(a_name(number), sick="c" * 80, ready="False", words=TEXT) for number in range(1, job.pods, 4)]
    return JobView(job=a_job_object(pods=job.pods, each=job.ranks_per_pod), pods=(*pods, *standbys), nodes=tuple(nodes))
