"""The one place where the model of the entity meets names of the control plane: workflows, activities, updates, payloads."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from temporalio.exceptions import ApplicationError

from rekindle.ids import ErrorTypes, Queries, Updates, Workflows, job_workflow, recovery_workflow, request_workflow
from rekindle.model import asks, keys
from rekindle.model.cluster import (
    Condition,
    JobObject,
    JobSpec,
    JobView,
    NodeStatus,
    ObjectMeta,
    PodPhase,
    PodSpec,
    PodStatus,
    PodTemplate,
)
from rekindle.model.cluster import Node as NodeObject
from rekindle.model.cluster import Pod as PodObject
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.recovery import Attachment, ModeInput, Order, Outcome, PodRef, Progress, Receipt, Report, ReportKind
from rekindle.model.state import JobState, JobStatus, Problems, Registration
from rekindle.policy.incidents import TOO_OFTEN
from rekindle.policy.intake import Tell, TellKind, Told, after, due, observe
from tests.support.driver import START, Driver
from tests.support.driver_activities import Activity
from tests.support.driver_runs import Answer, Run
from tests.support.model_training import RANKS, Message
from tests.support.model_world import Away, Node, Pod, Refused, World
from workflows.hot_switch import HotSwitch
from workflows.rescheduling import JobRescheduling
from workflows.training_job import TrainingJob

JOB = "job-1"
ENTITY, RECOVERY = job_workflow(JOB), recovery_workflow(JOB)
WORKFLOWS = (TrainingJob, HotSwitch, JobRescheduling)
MODES = {Workflows.HOT_SWITCH: "hot switch", Workflows.JOB_RESCHEDULING: "restart"}
"""What the model calls the modes."""

NOT_YET = (ErrorTypes.NOT_INITIALIZED, ErrorTypes.NOT_REGISTERED)
BETWEEN_MODES = ErrorTypes.BETWEEN_MODES
LABELS = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch", keys.PROCESS_RECOVER_ENABLE: "on"}


@dataclass(frozen=True)
class Call:
    """An update of the entity."""

    name: str
    arguments: tuple[Any, ...] = ()
    update_id: str = ""
    starts: JobState | None = None
    """It starts the entity where there is none."""


# ---- what clients send


def front(driver: Driver, mode: str, rank: int, name: str) -> None:
    """A client starts a mode by itself."""
    kind = next(kind for kind, known in MODES.items() if known == mode)
    pod_rank = rank if kind == Workflows.HOT_SWITCH else None
    asked = ModeInput(job_id=JOB, pod_rank=pod_rank, force=True, requested_by=name)
    driver.start(kind, front_id(name), asked)


def front_id(name: str) -> str:
    return request_workflow(JOB, name)


def lift() -> Call:
    return Call(Updates.LIFT)


def opening() -> tuple[Call, Call]:
    """What a manager says before it subscribes."""
    return Call(Updates.INITIALIZE), Call(Updates.REGISTER_CLIENT)


def call_of(message: Message, now: datetime, number: int) -> Call:
    """A message of the training side to the entity."""
    if message.kind == "attach":
        return Call(Updates.ATTACH, (Attachment(queue=message.queue, session=message.session, since=now),))
    if message.kind == "detach":
        return Call(Updates.DETACH, (message.session,))
    if message.kind == "first step":
        return Call(Updates.PROGRESS, (Progress(incarnation=message.life, step=1, steps_lost=1),))
    ranks = tuple(rank * RANKS + i for rank in message.ranks for i in range(RANKS))
    fault = Fault(
        episode=f"process/{number}",
        kind=FaultKind.PROCESS,
        ranks=ranks,
        message=f"ranks {ranks} are faulty",
        seen_at=now,
        source="training-side",
    )
    return Call(Updates.FAULT, (fault,))


def report_of(message: Message) -> Call | None:
    """A message that answers an order; None: it answers none."""
    if message.kind == "pause":
        return Call(Updates.REPORT, (Report(kind=ReportKind.STRATEGIES, strategies=message.offers),))
    if message.kind == "resumed":
        report = Report(kind=ReportKind.STATUS, code=message.code, strategy=message.strategy, info=message.strategy)
        return Call(Updates.REPORT, (report,))
    return None


# ---- what a model looks at


@dataclass(frozen=True)
class Ended:
    """An incident that is over."""

    summary: str
    seconds: float
    began: datetime
    tried: tuple[str, ...]
    given_up: str
    """Why; empty: it was not."""
    needs_a_person: bool
    """It was given up on purpose: a job that dies again and again is not restarted for ever."""
    cancelled: bool


@dataclass(frozen=True)
class Seen:
    """The entity, as its query shows it."""

    waiting: tuple[str, ...]
    session: str
    incidents: tuple[Ended, ...]


def seen(driver: Driver) -> Seen:
    state = driver.query(ENTITY, Queries.STATUS, JobStatus).state
    waiting = (
        *(f"{fault.episode}: {fault.message}" for fault in state.faults),
        *(f"request for {request.mode}" for request in state.requests),
        *(f"sub-health {pod.fault.episode}" for pod in state.sub_healthy),
    )
    incidents = tuple(
        Ended(
            summary=one.summary,
            seconds=one.seconds,
            began=one.started_at,
            tried=tuple(f"{verdict.mode} {verdict.outcome}: {verdict.reason}" for verdict in one.ladder),
            given_up=one.ladder[-1].reason if one.verdict is Outcome.GIVEN_UP else "",
            needs_a_person=one.ladder[-1].reason == TOO_OFTEN,
            cancelled=one.verdict is Outcome.CANCELLED,
        )
        for one in state.history
    )
    return Seen(waiting=waiting, session=state.attachment.session if state.attachment else "", incidents=incidents)


def says_recovered(run: Run) -> bool:
    """Whether a mode ended with this verdict."""
    return run.status == "completed" and run.result is not None and b'"outcome":"recovered"' in run.result.data


def is_first_mode(run: Run) -> bool:
    """Whether no mode was tried before it in its incident."""
    context = run.argument(ModeInput).context
    return context is not None and not context.situation.tried


# ---- what the intake tells


class Intake:
    """The real intake, with what it remembers."""

    def __init__(self, told: Told | None = None) -> None:
        self._told, self._view, self._tell = told or Told(), JobView(), Tell(kind=TellKind.END)
        self._seen = False

    def restarted(self) -> "Intake":
        return Intake(self._told.kept())

    def look(self, view: JobView) -> None:
        self._view, self._seen = view, True
        self._told = observe(self._told, view)

    def next(self, now: datetime, life: int) -> Call | None:
        """What is to be told now."""
        tells = due(self._told, self._view, now) if self._seen else ()
        if not tells:
            return None
        tell = self._tell = tells[0]
        if tell.kind is TellKind.REGISTER:
            assert self._view.job is not None
            registration = Registration.of(job_of(self._view.job, Limits()), tell.problems)
            state = JobState.of(registration.job)
            return Call(Updates.REGISTER, (registration,), f"{tell.update_id}/{life}", starts=state)
        if tell.kind is TellKind.PROBLEMS:
            return Call(Updates.PROBLEMS, (Problems(found=tell.problems),), f"{tell.update_id}/{life}")
        names = {TellKind.FAULT: Updates.FAULT, TellKind.CLEARED: Updates.CLEARED, TellKind.END: Updates.END}
        return Call(names[tell.kind], (tell.fault or tell.episode or tell.reason,), tell.update_id)

    def answered(self, answer: Answer) -> None:
        unknown = answer.kind == "not found"
        self._told = Told(pods=self._told.pods) if unknown else after(self._told, self._tell, self._view)


def view(world: World, labels: dict[str, str]) -> JobView:
    """The job as the cluster shows it."""
    if world.ended:
        return JobView(nodes=tuple(map(_node_object, world.nodes.values())))
    mindio = world.knobs.side == "mindio"
    able = "single_operator,megatron,replace_rank_0" if mindio else "replace_rank_0"
    downgraded = {keys.DOWNGRADED: labels[keys.DOWNGRADED]} if keys.DOWNGRADED in labels else {}
    written = {key: value for key, value in labels.items() if key != keys.DOWNGRADED}
    meta = ObjectMeta(name="gpt", uid=JOB, labels=written, annotations={**downgraded, keys.CAPABILITIES: able})
    template = PodTemplate(command=("train",))
    spec = JobSpec(pods=world.knobs.pods, ranks_per_pod=RANKS, template=template, training_side=world.knobs.side)
    job = JobObject(kind="AscendJob" if mindio else "LocalJob", metadata=meta, spec=spec)
    return JobView(
        job=job, pods=tuple(map(_pod_object, world.pods.values())), nodes=tuple(map(_node_object, world.nodes.values()))
    )


def _pod_object(pod: Pod) -> PodObject:
    return _pod_as(*astuple(pod))


@lru_cache(maxsize=10_000)
def _pod_as(*fields: Any) -> PodObject:
    """The same ones are shown again and again."""
    pod = Pod(*fields)
    marks = {keys.RANK_INDEX: str(pod.rank), **({keys.POD_TYPE: "backup"} if pod.backup else {})}
    meta = ObjectMeta(
        name=pod.name,
        uid=pod.uid,
        labels={keys.GENERATION: pod.generation},
        annotations=marks,
        owner_uid=JOB,
        deletion_timestamp=START if pod.leaving else None,
    )
    spec, status = PodSpec(command=("train",), node_name=pod.node), PodStatus(phase=PodPhase(pod.phase), message=pod.words)
    return PodObject(metadata=meta, spec=spec, status=status)


def _node_object(node: Node) -> NodeObject:
    return _node_as(*astuple(node))


@lru_cache(maxsize=10_000)
def _node_as(*fields: Any) -> NodeObject:
    node = Node(*fields)
    words = f"node {node.name} is lost"
    ready = Condition(type="Ready", status="True" if node.ready else "False", reason="NodeLost", message=words)
    sick = Condition(type="SubHealthy", status="True" if node.sick else "False", reason="80E18005")
    conditions = tuple(one.model_copy(update={"last_transition_time": node.since}) for one in (ready, sick))
    meta = ObjectMeta(name=node.name, uid=f"uid-{node.name}")
    return NodeObject(metadata=meta, status=NodeStatus(accelerators=1, conditions=conditions))


# ---- what workflows ask of the world


class Activities:
    """Carries activities out: those over pods, orders, and questions to the entity."""

    def __init__(self, driver: Driver, world: World, labels: dict[str, str]) -> None:
        self._driver, self._world, self._labels = driver, world, labels
        self.accepted: list[str] = []
        """Fronts whose request the entity took."""

    def perform(self, activity: Activity, attempt: int) -> None:
        try:
            getattr(self, f"_{activity.name}")(activity, attempt)
        except Refused as error:
            activity.fail(attempt, ApplicationError(str(error), type="cluster.invalid", non_retryable=True))
        except Away as error:
            activity.fail(attempt, ApplicationError(str(error), type="cluster.unavailable"))

    def _deliver_order(self, activity: Activity, attempt: int) -> None:
        order, training = activity.argument(Order), self._world.training
        if training.session and training.queue == activity.queue:
            training.order(order.name, order.uuid, tuple(fault.rank for fault in order.fault_ranks))
            activity.complete(attempt)
        else:
            activity.fail(attempt, ApplicationError("no stream here", type="training_side.not_attached"))

    def _end_session(self, activity: Activity, attempt: int) -> None:
        if self._world.training.session == activity.argument(asks.EndSession).session:
            self._world.training.cut()
        activity.complete(attempt)

    def _ensure_backup(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(asks.BackupRequest)
        old, backup = self._world.make_backup(request.pod_rank, request.name_suffix, request.avoid_nodes)
        activity.complete(attempt, asks.Backup(old=_ref(old), backup=_ref(backup)))

    def _await_scheduled(self, activity: Activity, attempt: int) -> None:
        def answer(pods: list[Pod]) -> asks.Scheduled:
            return asks.Scheduled(node=pods[0].node if pods else "", message="no node" if pods else "the pod is gone")

        self._await(activity, attempt, lambda pods: all(pod.node or pod.over or pod.leaving for pod in pods), answer)

    def _await_running(self, activity: Activity, attempt: int) -> None:
        wanted = len(activity.argument(asks.PodsRequest).pods)

        def done(pods: list[Pod]) -> bool:
            ended = len(pods) < wanted or any(pod.over or pod.leaving for pod in pods)
            return ended or all(pod.phase == "Running" for pod in pods)

        def answer(pods: list[Pod]) -> asks.Started:
            runs = len(pods) == wanted and all(pod.alive for pod in pods)
            gone = len(pods) < wanted
            words = ", ".join(f"{pod.name} {pod.phase}" for pod in pods)
            return asks.Started(running=runs, message="" if runs else f"gone: {wanted - len(pods)} pods" if gone else words)

        self._await(activity, attempt, done, answer)

    def _await_gone(self, activity: Activity, attempt: int) -> None:
        self._await(activity, attempt, lambda pods: not pods, lambda pods: [_ref(pod) for pod in pods])

    def _await(
        self, activity: Activity, attempt: int, done: Callable[[list[Pod]], bool], answer: Callable[[list[Pod]], object]
    ) -> None:
        request, world = activity.argument(asks.PodsRequest), self._world
        uids = {pod.uid for pod in request.pods}

        def look(*, late: bool = False) -> None:
            pods = [pod for pod in world.pods.values() if pod.uid in uids]
            if look in world.changed and (late or done(pods)):
                world.changed.remove(look)
                activity.complete(attempt, answer(pods))

        world.changed.append(look)
        self._driver.after(max(0.0, (request.deadline - self._driver.now).total_seconds()), lambda: look(late=True))
        look()

    def _swap(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(asks.SwapRequest)
        self._world.answer()
        backup = self._world.pods.get(request.backup.uid)
        alive = backup is not None and backup.alive
        if alive:
            self._world.delete(request.old.uid, 0)
        activity.complete(attempt, asks.Swap(old_deleted=alive, message="" if alive else "the backup pod is gone"))

    def _promote(self, activity: Activity, attempt: int) -> None:
        self._world.promote(activity.argument(asks.SwapRequest).backup.uid)
        activity.complete(attempt)

    def _delete_backups(self, activity: Activity, attempt: int) -> None:
        pods = self._world.delete_backups(activity.argument(asks.StopRequest).grace_seconds)
        activity.complete(attempt, [_ref(pod) for pod in pods])

    def _delete_pods(self, activity: Activity, attempt: int) -> None:
        pods = self._world.delete_all(activity.argument(asks.StopRequest).grace_seconds)
        activity.complete(attempt, [_ref(pod) for pod in pods])

    def _ensure_pods(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(asks.StartRequest)
        pods = self._world.make_pods(request.generation, request.avoid_nodes)
        activity.complete(attempt, [_ref(pod) for pod in pods])

    def _publish_policy(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(asks.PolicyRequest)
        self._world.answer()
        self._labels[keys.SUB_HEALTHY_STRATEGY] = request.strategy
        self._labels.pop(keys.DOWNGRADED, None)
        if request.reason:
            self._labels[keys.DOWNGRADED] = request.reason
        self._world.change()
        activity.complete(attempt)

    def _record_event(self, activity: Activity, attempt: int) -> None:
        self._world.answer()
        activity.complete(attempt)

    def _ask_job(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(asks.AskRequest).request

        def answered(answer: Answer) -> None:
            if not answer.kind:
                self.accepted.append(request.front)
                activity.complete(attempt, Receipt(info="accepted"))
            elif answer.kind == "again":
                activity.fail(attempt, ApplicationError("again"))
            else:
                kind = ErrorTypes.JOB_UNKNOWN if answer.kind == "not found" else answer.kind
                activity.fail(attempt, ApplicationError(answer.message, type=kind, non_retryable=True))

        self._driver.update(ENTITY, Updates.REQUEST, [request], activity.run.run_id, answered)

    def _terminate_recovery(self, activity: Activity, attempt: int) -> None:
        self._driver.terminate(activity.argument(asks.TerminateRequest).workflow_id)
        activity.complete(attempt)


def _ref(pod: Pod) -> PodRef:
    return PodRef(name=pod.name, uid=pod.uid, node=pod.node, rank=pod.rank)
