"""Every call to the world, once, with its time-outs and its line in the Temporal UI. Only modes and `TrainingJob` call it.

Five classes of time-outs, and no numbers anywhere else. A business limit is a deadline that the activity knows, and the
schedule-to-close time behind it; the heartbeat time-out is what a killed worker costs.
"""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityConfig, ActivityHandle

from activities.jobs import JobActivities
from activities.pods import PodActivities
from activities.training import OrderActivities
from rekindle.model.asks import (
    AskRequest,
    Backup,
    BackupRequest,
    EndSession,
    EventRequest,
    PodsRequest,
    PolicyRequest,
    Scheduled,
    Started,
    StartRequest,
    StopRequest,
    Survey,
    SurveyRequest,
    Swap,
    SwapRequest,
    TerminateRequest,
)
from rekindle.model.cluster import ClusterEvent
from rekindle.model.recovery import ModeRequest, Order, PodRef, Receipt

HEARTBEAT = timedelta(seconds=2)
MARGIN = timedelta(seconds=30)
"""Between an activity's own deadline and the server's."""

READ = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(seconds=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=5)),
)
WRITE = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=15),
    schedule_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
)
WAIT = ActivityConfig(
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
)
ORDER = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=1)),
)
JOURNAL = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=5),
    schedule_to_close_timeout=timedelta(seconds=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(maximum_attempts=3),
)


def named(config: ActivityConfig, summary: str) -> ActivityConfig:
    """A class of time-outs with the line that people read in the Temporal UI."""
    return {**config, "summary": summary}


def _waiting(until: datetime) -> ActivityConfig:
    limit = until - workflow.now() + MARGIN
    return {**WAIT, "start_to_close_timeout": limit, "schedule_to_close_timeout": limit}


def _order(queue: str, within: timedelta) -> ActivityConfig:
    return {**ORDER, "task_queue": queue, "schedule_to_close_timeout": within}


def deliver(order: Order, queue: str, within: timedelta) -> ActivityHandle[None]:
    """Puts an order on the job's stream, in the gateway that holds it."""
    return workflow.start_activity_method(
        OrderActivities.deliver_order,
        order,
        **named(_order(queue, within), f"order {order.name}"),
    )


async def end_session(queue: str, request: EndSession) -> None:
    """Ends a stream that a newer subscription at another gateway replaced; a dead gateway has ended it already."""
    await _journal_write(
        workflow.start_activity_method(
            OrderActivities.end_session,
            request,
            **named(_order(queue, MARGIN), "end the older stream"),
        )
    )


async def ensure_backup(request: BackupRequest) -> Backup:
    return await workflow.execute_activity_method(
        PodActivities.ensure_backup, request, **named(WRITE, f"start backup pod for pod rank {request.pod_rank}")
    )


def await_scheduled(job_id: str, pod: PodRef, until: datetime) -> ActivityHandle[Scheduled]:
    request = PodsRequest(job_id=job_id, pods=(pod,), deadline=until)
    return workflow.start_activity_method(
        PodActivities.await_scheduled, request, **named(_waiting(until), f"wait until {pod.name} is scheduled")
    )


def await_running(job_id: str, pods: tuple[PodRef, ...], until: datetime) -> ActivityHandle[Started]:
    names = ", ".join(pod.name for pod in pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
    request = PodsRequest(job_id=job_id, pods=pods, deadline=until)
    return workflow.start_activity_method(
        PodActivities.await_running, request, **named(_waiting(until), f"wait until {names} runs")
    )


async def swap(job_id: str, old: PodRef, backup: PodRef) -> Swap:
    request = SwapRequest(job_id=job_id, old=old, backup=backup)
    return await workflow.execute_activity_method(
        PodActivities.swap, request, **named(READ, f"delete {old.name} if {backup.name} is alive")
    )


def await_gone(job_id: str, pods: tuple[PodRef, ...], until: datetime) -> ActivityHandle[tuple[PodRef, ...]]:
    names = pods[0].name if len(pods) == 1 else f"{len(pods)} pods"
    request = PodsRequest(job_id=job_id, pods=pods, deadline=until)
    return workflow.start_activity_method(
        PodActivities.await_gone, request, **named(_waiting(until), f"wait until {names} is gone")
    )


async def promote(job_id: str, old: PodRef, backup: PodRef) -> None:
    request = SwapRequest(job_id=job_id, old=old, backup=backup)
    await workflow.execute_activity_method(
        PodActivities.promote, request, **named(WRITE, f"{backup.name} takes over pod rank {old.rank}")
    )


async def delete_backups(job_id: str) -> tuple[PodRef, ...]:
    request = StopRequest(job_id=job_id, grace_seconds=0)
    return await workflow.execute_activity_method(PodActivities.delete_backups, request, **named(WRITE, "delete the backup pod"))


async def delete_pods(job_id: str, grace: timedelta) -> tuple[PodRef, ...]:
    request = StopRequest(job_id=job_id, grace_seconds=int(grace.total_seconds()))
    return await workflow.execute_activity_method(
        PodActivities.delete_pods, request, **named(WRITE, "delete all pods of the job")
    )


async def ensure_pods(job_id: str, generation: str, avoid_nodes: tuple[str, ...]) -> tuple[PodRef, ...]:
    request = StartRequest(job_id=job_id, generation=generation, avoid_nodes=avoid_nodes)
    without = f", not on {', '.join(avoid_nodes)}" if avoid_nodes else ""
    return await workflow.execute_activity_method(
        PodActivities.ensure_pods, request, **named(WRITE, f"start the job's pods{without}")
    )


async def survey(job_id: str, nodes: tuple[str, ...]) -> Survey:
    request = SurveyRequest(job_id=job_id, nodes=nodes)
    return await workflow.execute_activity_method(PodActivities.survey, request, **named(READ, "look at the job's pods"))


async def publish_policy(request: PolicyRequest) -> None:
    await _journal_write(
        workflow.start_activity_method(
            PodActivities.publish_policy, request, **named(WRITE, f"sub-health policy is {request.strategy}")
        )
    )


async def record_event(job_id: str, event: ClusterEvent) -> None:
    await _journal_write(
        workflow.start_activity_method(
            PodActivities.record_event, EventRequest(job_id=job_id, event=event), **named(JOURNAL, f"event {event.reason}")
        )
    )


async def _journal_write(write: ActivityHandle[None]) -> None:
    """A record that cannot be written must not cost the recovery."""
    try:
        await write
    except ActivityError as error:
        workflow.logger.warning("not recorded", extra={"error": str(error.cause)})


async def ask_job(job_id: str, request: ModeRequest) -> Receipt:
    return await workflow.execute_activity_method(
        JobActivities.ask_job,
        AskRequest(job_id=job_id, request=request),
        summary=f"ask job {job_id} for a {request.mode}",
        start_to_close_timeout=timedelta(seconds=10),
        schedule_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=HEARTBEAT,
    )


async def terminate(workflow_id: str, reason: str) -> None:
    await workflow.execute_activity_method(
        JobActivities.terminate_recovery,
        TerminateRequest(workflow_id=workflow_id, reason=reason),
        **named(WRITE, f"terminate {workflow_id}"),
    )
