"""Nothing that crosses Temporal grows beyond 256 KiB, for the largest jobs that the product serves.

Every model that a workflow or an activity takes or answers has its largest examples here: who adds one is asked for them.
"""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from temporalio.activity import _Definition as ActivityDefinition
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import ActivityEnvironment
from temporalio.workflow import _Definition as WorkflowDefinition

from activities.jobs import JobActivities
from activities.pods import PodActivities
from activities.training import OrderActivities
from rekindle.model import asks, recovery, state
from rekindle.model.cluster import ClusterEvent, JobPhase, PodPhase
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.recovery import Mode, ModeRequest, Outcome, PodRef
from rekindle.model.sizes import LONGEST_NAME, LONGEST_TEXT, MOST_PODS, MOST_RANKS
from rekindle.model.state import JobState
from rekindle.policy import incidents, nodes
from tests.support.scripted_cluster import ScriptedCluster
from workers.control import WORKFLOWS, activities_of
from workflows.climb import Climb

LARGEST = 256 * 1024
NOW = datetime(2026, 7, 27, 12, 0, tzinfo=UTC)
TEXT = "x" * LONGEST_TEXT
FAILED_PODS = 1_250
NAME = "a-training-job-with-a-name-of-the-usual-length-of-large-ones"


def a_name(number: int) -> str:
    """As long as Kubernetes allows."""
    return f"{NAME}-worker-{number:05}".ljust(LONGEST_NAME, "x")


JOBS = {
    "10,000 ranks, 2 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS, ranks_per_pod=2),
    "10,000 ranks, 8 a pod": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_RANKS // 8, ranks_per_pod=8),
    "5,000 pods": Job(id=JobId("u" * 36), name=a_name(0), pods=MOST_PODS),
}


def pod_fault(job: Job, number: int) -> Fault:
    return Fault(
        episode=f"{'u' * 36}-{number}/failed",
        kind=FaultKind.POD,
        pod_ranks=(number,),
        ranks=tuple(job.ranks_of(number)),
        node=a_name(number),
        pod=a_name(number),
        pod_uid="u" * 36,
        message=TEXT,
        seen_at=NOW,
        source="watcher",
    )


def node_fault(number: int, kind: FaultKind = FaultKind.NODE) -> Fault:
    return Fault(episode=f"{number}", kind=kind, node=a_name(number), message=TEXT, seen_at=NOW, source="watcher")


def process_fault(job: Job) -> Fault:
    """Every second rank of the job, which is the longest text."""
    return Fault(
        episode="e",
        kind=FaultKind.PROCESS,
        ranks=tuple(range(0, job.ranks, 2)),
        message=TEXT,
        seen_at=NOW,
        source="training-side",
    )


def verdict(job: Job, outcome: Outcome = Outcome.RECOVERED) -> recovery.Verdict:
    return recovery.Verdict(
        mode=Mode.JOB_RESCHEDULING,
        outcome=outcome,
        reason=TEXT * 3,
        phases=tuple(recovery.Phase(name="p" * 60, seconds=1.0, note=TEXT) for _ in range(8)),
        look_at=TEXT,
        restarted_at=NOW,
        switched=(recovery.Switched(pod_rank=1, before=pod_ref(1), after=pod_ref(2)),),
        unread=reports(job)[:1],
    )


def pod_ref(number: int) -> PodRef:
    return PodRef(name=a_name(number), uid="u" * 36, node=a_name(number), rank=number)


def reports(job: Job) -> tuple[recovery.Report, ...]:
    """Every rank is faulty, or isolated."""
    everyone = tuple(recovery.FaultRank(rank=rank) for rank in range(job.ranks))
    strategies = tuple("s" * 64 for _ in range(32))
    return (
        recovery.Report(kind=recovery.ReportKind.STOP_COMPLETE, info="i" * 1000, fault_ranks=everyone),
        recovery.Report(kind=recovery.ReportKind.STRATEGIES, strategies=strategies, fault_ranks=everyone),
        recovery.Report(kind=recovery.ReportKind.STATUS, info="i" * 1000, isolate_ranks=tuple(range(job.ranks))),
    )


def worn(job: Job) -> JobState:
    """The state of a job that had twenty bad incidents, and that a quarter of its pods fail again."""
    found = JobState.of(job.model_copy(update={"sub_health": SubHealthStrategy.HOT_SWITCH}))
    for number in range(state.KEPT_INCIDENTS + 1):
        for failed in range(2 * incidents.KEPT_FAULTS):
            fault = pod_fault(job, failed)
            found = incidents.take_fault(found, fault.model_copy(update={"episode": f"{number}/{fault.episode}"}))
        case = incidents.next_case(found)
        assert case
        found = incidents.without(found, case)
        ladder = (verdict(job, Outcome.ESCALATE), verdict(job))
        incident = recovery.Incident(
            number=number,
            summary=case.summary,
            started_at=NOW,
            seconds=1.0,
            verdict=Outcome.RECOVERED,
            ladder=tuple(one.model_copy(update={"unread": ()}) for one in ladder),
            policy_after=found.policy,
            faults=case.faults,
        )
        found = incidents.concluded(found, incident)
    for failed in range(FAILED_PODS):
        found = incidents.take_fault(found, pod_fault(job, failed))
    problems = tuple(f"pod {a_name(number)} carries no rank" for number in range(21))
    return found.model_copy(update={"problems": problems})


def mode_inputs(job: Job, found: JobState) -> list[recovery.ModeInput]:
    """As the entity gives them: pods failed, and all nodes are lost or sub-healthy."""
    many = tuple(node_fault(number) for number in range(MOST_PODS))
    ill = tuple(node_fault(number, FaultKind.SUB_HEALTH) for number in range(MOST_PODS))
    case = incidents.next_case(found.model_copy(update={"problems": ()}))
    assert case
    given = [Climb(case.model_copy(update={"faults": faults}), found)._input(found) for faults in (case.faults, many, ill)]
    return [*given, recovery.ModeInput(job_id=job.id)]


async def answers(job: Job, phase: PodPhase) -> list[Any]:
    """What the activities answer for all pods of a job in one phase."""
    cluster = ScriptedCluster(job, nodes=job.pods)
    for pod in list(cluster.pods_by_name.values()):
        cluster._put(pod.model_copy(update={"status": pod.status.model_copy(update={"phase": phase, "message": TEXT})}))
    pods = PodActivities(cluster)
    restart = asks.Restart(job_id=job.id, generation="g" * 36)
    old = restart.model_copy(update={"youngest": datetime.now(UTC)})
    new = asks.NewPodsRequest(restart=restart, pods=job.pods)
    calls: list[tuple[Callable[..., Any], Any]] = [
        (pods.await_new_running, new),
        (pods.look_at_new_pods, new),
        (pods.await_old_gone, asks.OldPodsRequest(restart=old, within=timedelta(0))),
        (pods.ensure_pods, asks.StartRequest(job_id=job.id, generation="g", avoid_nodes=())),
        (pods.delete_pods, asks.StopRequest(job_id=job.id, grace_seconds=0)),
    ]
    return [await ActivityEnvironment().run(call, request) for call, request in calls]


async def examples(job: Job) -> list[Any]:
    """The largest of everything."""
    event = ClusterEvent(name=job.name, kind=job.kind, reason="RecoveryGivenUp", message=TEXT * 2)
    avoided = nodes.to_avoid((node_fault(number) for number in range(MOST_PODS)), SubHealthStrategy.IGNORE)
    restart = asks.Restart(job_id=job.id, generation="g" * 36, youngest=NOW)
    found, request = worn(job), ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1, requested_by=TEXT, front=TEXT)
    largest = [await answers(job, phase) for phase in (PodPhase.PENDING, PodPhase.FAILED)]
    return [
        *mode_inputs(job, found),
        *(answer for some in largest for answer in some),
        *reports(job),
        pod_fault(job, 1),
        node_fault(1),
        process_fault(job),
        found,
        state.JobStatus(state=found, running=Mode.JOB_RESCHEDULING),
        state.Registration.of(job, found.problems),
        state.Problems(found=found.problems),
        verdict(job),
        request,
        recovery.Order(
            job_id=job.id, uuid="u" * 50, signal_type="s", fault_ranks=tuple(recovery.FaultRank(rank=r) for r in range(job.ranks))
        ),
        recovery.Receipt(info=TEXT),
        recovery.Attachment(queue=TEXT, session=TEXT, since=NOW),
        recovery.Progress(incarnation=TEXT, step=1),
        asks.AskRequest(job_id=job.id, request=request),
        asks.Backup(old=pod_ref(1), backup=pod_ref(2)),
        asks.BackupRequest(job_id=job.id, pod_rank=1, name_suffix="1", avoid_nodes=avoided),
        asks.EndSession(job_id=job.id, session=TEXT, reason=TEXT),
        asks.EventRequest(job_id=job.id, event=event),
        asks.JobRequest(job_id=job.id),
        asks.JobLook(phase=JobPhase.RUNNING),
        asks.NewPodsRequest(restart=restart, pods=job.pods),
        asks.OldPodsRequest(restart=restart, within=Limits().pods_stopped),
        asks.PodsRequest(job_id=job.id, pods=(pod_ref(1), pod_ref(2)), within=Limits().pause),
        asks.PolicyRequest(job_id=job.id, strategy="ignore", reason=TEXT),
        asks.Scheduled(node=a_name(1), message=TEXT * 5),
        asks.StartRequest(job_id=job.id, generation="g" * 36, avoid_nodes=avoided),
        asks.StopRequest(job_id=job.id, grace_seconds=5, lost_nodes=avoided),
        asks.Swap(old_deleted=False, message=TEXT * 5),
        asks.SwapRequest(job_id=job.id, old=pod_ref(1), backup=pod_ref(2)),
        asks.TerminateRequest(workflow_id=TEXT, reason=TEXT),
        (pod_ref(1), pod_ref(2)),
        TEXT,
    ]


def _functions() -> Iterator[Callable[..., Any]]:
    """Everything that takes or answers a payload: runs, updates, signals, queries, activities."""
    for workflow in WORKFLOWS:
        definition = WorkflowDefinition.must_from_class(workflow)
        yield definition.run_fn
        for group in (definition.signals, definition.queries, definition.updates):
            yield from (handler.fn for handler in group.values())
    pods, jobs = PodActivities.__new__(PodActivities), JobActivities.__new__(JobActivities)
    orders = OrderActivities.__new__(OrderActivities)
    activities: list[Callable[..., Any]] = [*activities_of(pods, jobs), orders.deliver_order, orders.end_session]
    yield from (ActivityDefinition.must_from_callable(activity).fn for activity in activities)


def _payload_types() -> set[Any]:
    found: set[Any] = set()
    for function in _functions():
        hints = get_type_hints(inspect.unwrap(getattr(function, "__func__", function)))
        for hint in hints.values():
            found |= set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    return found - {NoneType}


async def test_every_payload_has_an_example() -> None:
    """A model that somebody adds to a workflow or an activity is found here until its largest example is above."""
    known = {type(example) for example in await examples(Job(id=JobId("j"), name="gpt", pods=FAILED_PODS))}
    missing = sorted(str(kind) for kind in _payload_types() if (get_origin(kind) or kind) not in known)
    assert not missing, f"give the largest example of: {', '.join(missing)}"


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
async def test_every_payload_of_the_largest_jobs_is_small(job: Job) -> None:
    """With a quarter of the pods failed, with all of them Pending, and with names and texts as long as they may be."""
    converter = pydantic_data_converter.payload_converter
    sizes: dict[str, int] = {}
    for example in await examples(job):
        (payload,) = converter.to_payloads([example])
        name = type(example).__name__
        sizes[name] = max(payload.ByteSize(), sizes.get(name, 0))
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}
