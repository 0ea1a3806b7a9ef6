"""All activity calls, each with its time-outs and its summary in the Temporal UI. Only modes and `TrainingJob` use them.

There are seven classes of time-outs, and no numbers elsewhere. A business limit is known to the activity, and the
schedule-to-close time is longer. The heartbeat time-out is the delay that a killed worker causes.
"""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType, ActivityConfig, ActivityHandle

from activities.admission import AdmissionActivities
from activities.contract import ContractActivities
from activities.jobs import JobActivities
from activities.journal import JournalActivities
from activities.nodes import NodeActivities
from activities.plans import PlanActivities
from activities.pods import PodActivities
from activities.training import OrderActivities
from rekindle.errors import ClusterUnavailable
from rekindle.model import bounds
from rekindle.model.activities.jobs import (
    EndSession,
    EventRequest,
    JobLook,
    JobRequest,
    PolicyRequest,
    RememberRequest,
    Survey,
    SurveyRequest,
)
from rekindle.model.activities.pods import (
    Backup,
    BackupRequest,
    LeftRequest,
    NewPodsRequest,
    OldPodsRequest,
    PodCount,
    PodsRequest,
    Replacement,
    Restart,
    Scheduled,
    Started,
    StartRequest,
    StopRequest,
    Swap,
    SwapRequest,
    SweepRequest,
)
from rekindle.model.activities.recreation import Held, Recreation, RecreationRequest
from rekindle.model.activities.requests import AskRequest, RecoveryEnd, TerminateRequest, WithdrawRequest
from rekindle.model.activities.standbys import StandbysNow, StandbysRequest
from rekindle.model.activities.targets import FindingsRequest, Found, LinkTargets, ResolveLinksRequest, TargetsRequest
from rekindle.model.cluster import ClusterEvent
from rekindle.model.contract import PlatformAnswer, PlatformRequest, Words, WordsRequest, WordsWritten
from rekindle.model.dialogue import Order
from rekindle.model.explained import NodesNow, NodesRequest
from rekindle.model.links import OnBackup
from rekindle.model.maintenance import FailoverRequest
from rekindle.model.node_record import AsideRequest, AsideResult
from rekindle.model.plan import FailOver, Leaf, LeafView, MoveBack, Moved, SurveyLeafRequest
from rekindle.model.ranks import written_ranks
from rekindle.model.situation import PodRef
from rekindle.model.stress import StressTargets
from rekindle.model.verdict import Verdict

HEARTBEAT = timedelta(seconds=2)
MARGIN = timedelta(seconds=30)
"""Time between an activity's own deadline and that of the server."""

READ = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(seconds=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=5)),
)
LOOK_WITHIN = timedelta(minutes=3)
LOOK = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=1),  # the pods of a job of 5,000, page by page
    schedule_to_close_timeout=LOOK_WITHIN,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=5)),
)
LOOK_FOR_LONG: ActivityConfig = {
    **LOOK,
    "start_to_close_timeout": timedelta(minutes=5),  # the pods of every job of an installation
    "schedule_to_close_timeout": timedelta(days=365),  # an upgrade goes on when the cluster answers again
}
WRITE = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=15),
    schedule_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
)
MAKE: ActivityConfig = {**WRITE, "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED}
"""Limits of an activity that creates something.

A cancellation waits until nothing is being created any more, as an object that is created after the undo would stay. The activity
is not retried then.
"""
MARK: ActivityConfig = {**WRITE, "schedule_to_close_timeout": timedelta(minutes=10)}
"""Limits of the removal of a backup's marks.

A backup that took over and keeps its mark looks like a rank that lost its pod, and training would be restarted for it.
"""
WAIT = ActivityConfig(
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
)
HOLD = ActivityConfig(
    start_to_close_timeout=timedelta(days=365),  # the server requires a limit; the mode has its own
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
)
WHOLE_JOB = ActivityConfig(
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.2),
        maximum_interval=timedelta(seconds=10),
        non_retryable_error_types=[ClusterUnavailable.type],  # its limit does not count while the cluster does not answer
    ),
)
PATIENT = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1)),
)
"""Limits of an activity that is retried without end.

The server's retries add no events to the history, however long the outage is.
"""
ORDER = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=1)),
)
JOURNAL = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=5),
    schedule_to_close_timeout=timedelta(seconds=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_attempts=6),
)

MEMORY = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=5),
    schedule_to_close_timeout=timedelta(hours=1),  # an outdated note could later cause the clean-up of a healthy job
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=30)),
)

WORDS: ActivityConfig = {
    **MEMORY,
    "start_to_close_timeout": timedelta(minutes=1),  # the pods of a job of 5,000, page by page
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
"""Limits of a write that a newer one may end. The newer one begins when nothing is being written any more."""


def named(config: ActivityConfig, summary: str) -> ActivityConfig:
    """Returns a class of time-outs with the summary that people read in the Temporal UI."""
    return {**config, "summary": bounds.summary(summary)}


def _waiting(within: timedelta) -> ActivityConfig:
    return {**WAIT, "start_to_close_timeout": within + MARGIN, "schedule_to_close_timeout": within + MARGIN}


def _whole_job(within: timedelta) -> ActivityConfig:
    return {**WHOLE_JOB, "start_to_close_timeout": within, "schedule_to_close_timeout": within}


def _order(queue: str, within: timedelta) -> ActivityConfig:
    return {**ORDER, "task_queue": queue, "schedule_to_close_timeout": within}


def deliver(order: Order, queue: str, within: timedelta) -> ActivityHandle[None]:
    """Sends an order on the job's stream, through the gateway that holds it."""
    return workflow.start_activity_method(
        OrderActivities.deliver_order,
        order,
        **named(_order(queue, within), f"order {order.name}"),
    )


async def end_session(queue: str, request: EndSession) -> None:
    """Ends a stream that was replaced by a newer subscription at another gateway.

    If that gateway is dead, the stream has ended already.
    """
    await _journal_write(
        workflow.start_activity_method(
            OrderActivities.end_session,
            request,
            **named(_order(queue, MARGIN), "end the older stream"),
        )
    )


async def tell_trace(order: Order, queue: str) -> None:
    """Sends what ranks are to measure on the stream that waits for it. Later subscribers get it when they subscribe."""
    await _journal_write(deliver(order, queue, MARGIN))


async def ensure_backup(request: BackupRequest) -> Backup:
    return await workflow.execute_activity_method(
        PodActivities.ensure_backup, request, **named(MAKE, f"start backup pod for pod rank {request.pod_rank}")
    )


async def resolve_links(request: ResolveLinksRequest) -> LinkTargets:
    return await workflow.execute_activity_method(
        PodActivities.resolve_links, request, **named(READ, "find the ranks of the devices")
    )


async def find_targets(request: TargetsRequest) -> StressTargets:
    return await workflow.execute_activity_method(
        PodActivities.find_targets, request, **named(READ, "find the ranks of the nodes")
    )


async def judge(request: FindingsRequest) -> Found:
    return await workflow.execute_activity_method(
        PodActivities.judge, request, **named(WRITE, "judge what was found, and isolate nodes with faults")
    )


async def ensure_replacement(request: BackupRequest) -> Replacement:
    return await workflow.execute_activity_method(
        PodActivities.ensure_replacement, request, **named(WRITE, f"replace the lost pod of pod rank {request.pod_rank}")
    )


def ensure_standbys(job_id: str, count: int, avoid_nodes: tuple[str, ...]) -> ActivityHandle[StandbysNow]:
    request = StandbysRequest(job_id=job_id, count=count, avoid_nodes=avoid_nodes)
    return workflow.start_activity_method(PodActivities.ensure_standbys, request, **named(MAKE, f"keep {count} standbys"))


def await_scheduled(job_id: str, pod: PodRef, until: datetime) -> ActivityHandle[Scheduled]:
    request = PodsRequest(job_id=job_id, pods=(pod,), within=_left(until))
    return workflow.start_activity_method(
        PodActivities.await_scheduled, request, **named(_waiting(request.within), f"wait until {pod.name} is scheduled")
    )


def await_running(job_id: str, pods: tuple[PodRef, ...], until: datetime) -> ActivityHandle[Started]:
    names = ", ".join(pod.name for pod in pods)
    request = PodsRequest(job_id=job_id, pods=pods, within=_left(until))
    return workflow.start_activity_method(
        PodActivities.await_running, request, **named(_waiting(request.within), f"wait until {names} runs")
    )


def make_anew(
    job_id: str, held: tuple[Held, ...], lost_nodes: tuple[str, ...], until: datetime, enough: int = 0
) -> ActivityHandle[Recreation]:
    """Args:
    enough: number of these pods that are waited for; 0: all of them.
    """
    ranks = bounds.few([str(one.pod_rank) for one in held])
    request = RecreationRequest(job_id=job_id, held=held, lost_nodes=lost_nodes, within=_left(until), enough=enough)
    return workflow.start_activity_method(
        PodActivities.make_anew, request, **named(_waiting(request.within), f"wait until pod ranks {ranks} have other pods")
    )


def _left(until: datetime) -> timedelta:
    """Returns the time that is left. Activities get a duration instead of a time, as the clocks of worker and server differ."""
    return max(timedelta(0), until - workflow.now())


async def swap(job_id: str, old: PodRef | None, backup: PodRef) -> Swap:
    request = SwapRequest(job_id=job_id, old=old, backup=backup)
    words = f"delete {old.name} if {backup.name} is alive" if old else f"see whether {backup.name} is alive"
    return await workflow.execute_activity_method(PodActivities.swap, request, **named(WRITE, words))


def await_gone(job_id: str, pods: tuple[PodRef, ...], until: datetime) -> ActivityHandle[tuple[PodRef, ...]]:
    names = ", ".join(pod.name for pod in pods)
    request = PodsRequest(job_id=job_id, pods=pods, within=_left(until))
    return workflow.start_activity_method(
        PodActivities.await_gone, request, **named(_waiting(request.within), f"wait until {names} is gone")
    )


async def promote(job_id: str, old: PodRef | None, backup: PodRef) -> None:
    request = SwapRequest(job_id=job_id, old=old, backup=backup)
    await workflow.execute_activity_method(
        PodActivities.promote, request, **named(MARK, f"{backup.name} takes over pod rank {backup.rank}")
    )


async def delete_backups(job_id: str) -> tuple[PodRef, ...]:
    request = StopRequest(job_id=job_id, grace_seconds=0)
    return await workflow.execute_activity_method(PodActivities.delete_backups, request, **named(WRITE, "delete the backup pod"))


def delete_left(job_id: str, pods: tuple[int, ...]) -> ActivityHandle[None]:
    request = LeftRequest(job_id=job_id, pod_ranks=pods)
    words = f"delete the pods of pod ranks {written_ranks(pods)}, which have left"
    return workflow.start_activity_method(PodActivities.delete_left, request, **named(WRITE, words))


def sweep(job_id: str, pods: tuple[PodRef, ...], have_left: dict[int, str]) -> ActivityHandle[None]:
    """Args:
    have_left: pods of ranks that have left the job, by pod rank, as `Sighting.holders`.
    """
    names = ", ".join([*(pod.name for pod in pods), *([f"pod ranks {written_ranks(have_left)}"] if have_left else [])])
    request = SweepRequest(job_id=job_id, pods=pods, have_left=have_left)
    return workflow.start_activity_method(PodActivities.sweep, request, **named(JOURNAL, f"delete {names}, left behind before"))


# ---- the pods of a whole job: thousands, so that none of these says which they are


async def delete_pods(job_id: str, grace: timedelta, lost_nodes: tuple[str, ...], within: timedelta) -> PodCount:
    request = StopRequest(job_id=job_id, grace_seconds=int(grace.total_seconds()), lost_nodes=lost_nodes)
    return await workflow.execute_activity_method(
        PodActivities.delete_pods, request, **named(_whole_job(within), "delete all pods of the job")
    )


async def await_old_gone(restart: Restart, within: timedelta) -> PodCount:
    request = OldPodsRequest(restart=restart, within=within)
    return await workflow.execute_activity_method(
        PodActivities.await_old_gone, request, **named(_whole_job(within + MARGIN), "wait until the old pods are gone")
    )


async def ensure_pods(request: StartRequest, within: timedelta) -> PodCount:
    without = f", not on {bounds.few(request.avoid_nodes)}" if request.avoid_nodes else ""
    return await workflow.execute_activity_method(
        PodActivities.ensure_pods, request, **named(_whole_job(within), f"start the job's pods{without}")
    )


async def await_new_running(restart: Restart, pods: int, within: timedelta) -> Started:
    request = NewPodsRequest(restart=restart, pods=pods, within=within)
    return await workflow.execute_activity_method(
        PodActivities.await_new_running, request, **named(_whole_job(within + MARGIN), f"wait until {pods} pods run")
    )


async def look_at_new_pods(restart: Restart, pods: int) -> Started:
    """Returns whether no rank has lost its pod since the restart."""
    request = NewPodsRequest(restart=restart, pods=pods)
    return await workflow.execute_activity_method(
        PodActivities.look_at_new_pods, request, **named(_whole_job(MARGIN), "look at the new pods")
    )


async def look_at_job(job_id: str) -> JobLook:
    """Returns the present state of the job; fails if the cluster does not answer."""
    return await workflow.execute_activity_method(
        PodActivities.look_at_job, JobRequest(job_id=job_id), **named(_whole_job(MARGIN), "look at the job")
    )


async def await_answer(job_id: str) -> None:
    """Waits until the cluster answers."""
    await workflow.execute_activity_method(
        PodActivities.look_at_job, JobRequest(job_id=job_id), **named(PATIENT, "wait until the cluster answers")
    )


async def survey(job_id: str, nodes: tuple[str, ...], within: timedelta = LOOK_WITHIN) -> Survey:
    """Args:
    within: time in which a look that the cluster does not answer is repeated.
    """
    request = SurveyRequest(job_id=job_id, nodes=nodes)
    options: ActivityConfig = {**LOOK, "schedule_to_close_timeout": within}
    return await workflow.execute_activity_method(PodActivities.survey, request, **named(options, "look at the job's pods"))


async def publish_policy(request: PolicyRequest) -> None:
    await _journal_write(
        workflow.start_activity_method(
            JournalActivities.publish_policy, request, **named(WRITE, f"sub-health policy is {request.strategy}")
        )
    )


async def record_event(job_id: str, event: ClusterEvent) -> None:
    await _journal_write(
        workflow.start_activity_method(
            JournalActivities.record_event, EventRequest(job_id=job_id, event=event), **named(JOURNAL, f"event {event.reason}")
        )
    )


async def _journal_write(write: ActivityHandle[None]) -> None:
    """Waits for a journal write and logs its error, which must not affect the recovery."""
    try:
        await write
    except ActivityError as error:
        workflow.logger.warning("write to the cluster failed", extra={"error": str(error.cause)})


async def remember(request: RememberRequest) -> None:
    await _journal_write(
        workflow.start_activity_method(JournalActivities.remember, request, **named(MEMORY, "note what must be found again"))
    )


def write_words(job_id: str, words: Words) -> ActivityHandle[WordsWritten]:
    what = "what holds in a recovery is removed" if words.over else "other components are told of the recovery"
    return workflow.start_activity_method(
        ContractActivities.write_words, WordsRequest(job_id=job_id, words=words), **named(WORDS, what)
    )


def ask_platform(request: PlatformRequest) -> ActivityHandle[PlatformAnswer]:
    return workflow.start_activity_method(
        ContractActivities.ask_platform, request, **named(_waiting(request.within), f"wait for the platform's {request.key}")
    )


async def try_backup(job_id: str) -> str:
    return await workflow.execute_activity_method(
        AdmissionActivities.try_backup, JobRequest(job_id=job_id), **named(READ, "ask whether a backup pod would be admitted")
    )


async def find_job(job: str) -> str:
    return await workflow.execute_activity_method(JobActivities.find_job, job, **named(READ, f"find job {job}"))


async def ask(request: AskRequest) -> None:
    return await workflow.execute_activity_method(JobActivities.ask, request, **named(READ, f"ask for a {request.request.mode}"))


async def links_now(job_id: str) -> tuple[OnBackup, ...]:
    return await workflow.execute_activity_method(
        JobActivities.links_now, job_id, **named(LOOK, "look which ranks are on their backup links")
    )


async def hold_request(request: AskRequest) -> Verdict:
    """Requests a mode and returns its verdict. Waits for as long as the mode takes, which has its own limits."""
    return await workflow.execute_activity_method(
        JobActivities.hold_request, request, **named(HOLD, f"ask for a {request.request.mode} and wait for the verdict")
    )


async def withdraw_request(request: WithdrawRequest) -> None:
    await workflow.execute_activity_method(JobActivities.withdraw_request, request, **named(WRITE, "withdraw the request"))


def await_recovery_end(workflow_id: str) -> ActivityHandle[RecoveryEnd]:
    return workflow.start_activity_method(
        JobActivities.await_recovery_end, workflow_id, **named(HOLD, f"wait for the end of {workflow_id}")
    )


async def terminate(workflow_id: str, reason: str) -> None:
    """Terminates a recovery, and retries without limit: what follows must not run beside a live recovery."""
    await workflow.execute_activity_method(
        JobActivities.terminate_recovery,
        TerminateRequest(workflow_id=workflow_id, reason=reason),
        **named(PATIENT, f"terminate {workflow_id}"),
    )


# ---- nodes, for people


async def mark_nodes(request: NodesRequest) -> None:
    what = f"{', '.join(request.names[:3])}: {request.mark}"
    await workflow.execute_activity_method(NodeActivities.mark_nodes, request, **named(WRITE, what))


async def cordon_nodes(request: NodesRequest) -> None:
    what = f"{', '.join(request.names[:3])}: {'cordoned' if request.cordon else 'uncordoned'}"
    await workflow.execute_activity_method(NodeActivities.cordon_nodes, request, **named(WRITE, what))


async def look_at_nodes(request: NodesRequest) -> NodesNow:
    return await workflow.execute_activity_method(NodeActivities.look_at_nodes, request, **named(LOOK, "look at the nodes"))


async def set_aside(request: AsideRequest) -> AsideResult:
    return await workflow.execute_activity_method(NodeActivities.set_aside, request, **named(MARK, f"set {request.node} aside"))


async def release_node(request: AsideRequest) -> None:
    await workflow.execute_activity_method(NodeActivities.release_node, request, **named(MARK, f"release {request.node}"))


# ---- the upgrade of a switch


async def survey_leaf(leaf: Leaf, jobs: tuple[str, ...]) -> LeafView:
    request = SurveyLeafRequest(leaf=leaf, jobs=jobs)
    return await workflow.execute_activity_method(
        PlanActivities.survey_leaf, request, **named(LOOK_FOR_LONG, f"look who is on leaf {leaf.name}")
    )


async def fail_over(maintenance: str, request: FailoverRequest, whose: str) -> Moved:
    wanted = FailOver(maintenance=maintenance, request=request, whose=whose)
    return await workflow.execute_activity_method(
        PlanActivities.fail_over, wanted, **named(HOLD, f"move the links of {request.name}, by {maintenance}")
    )


async def move_back(maintenance: str, requested_by: str) -> Moved:
    request = MoveBack(maintenance=maintenance, requested_by=requested_by)
    return await workflow.execute_activity_method(
        PlanActivities.move_back, request, **named(HOLD, f"move the links of {maintenance} back")
    )
