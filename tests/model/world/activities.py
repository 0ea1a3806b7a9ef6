"""World of the model as the control plane's activities and its watcher see it: objects of the cluster, answers, errors."""

from collections.abc import Callable
from dataclasses import astuple
from datetime import timedelta
from functools import lru_cache
from typing import Any

from temporalio.exceptions import ApplicationError

from rekindle.errors import ClusterUnavailable, NotFound, Unavailable
from rekindle.ids import ErrorTypes, Queries, Updates
from rekindle.model import keys
from rekindle.model.activities.jobs import EndSession, JobLook, PolicyRequest, RememberRequest, Survey, SurveyRequest
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
from rekindle.model.activities.recreation import Recreation, RecreationRequest
from rekindle.model.activities.requests import AskRequest, RecoveryEnd, TerminateRequest, WithdrawRequest
from rekindle.model.activities.targets import FindingsRequest, Found, ResolveLinksRequest, TargetsRequest
from rekindle.model.cluster import (
    Condition,
    JobObject,
    JobPhase,
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
from rekindle.model.dialogue import Order
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.job import Trait
from rekindle.model.layout import Layout
from rekindle.model.links import RankLinks
from rekindle.model.situation import PodRef, Switched
from rekindle.model.state import JobStatus
from rekindle.model.stress import StressTargets
from rekindle.model.verdict import Verdict
from rekindle.policy.detection.devices import DeviceOfRank, devices
from rekindle.policy.detection.isolation import isolation
from rekindle.policy.detection.sighting import end_of, sight
from rekindle.policy.operations import device_checks
from rekindle.policy.operations.links import resolved
from tests.model.world.adapter import ENTITY, JOB, has_waited_only, is_settled, verdict_of
from tests.model.world.driver import START, Driver
from tests.model.world.driver_activities import Activity
from tests.model.world.driver_runs import PAYLOADS, Answer
from tests.model.world.messages import Operation
from tests.model.world.operations import OPERATIONS
from tests.model.world.training import RANKS, Training
from tests.model.world.world import Away, Missing, Node, Pod, Refused, World

ANNOTATIONS = (keys.DOWNGRADED, keys.MEMORY)
"""Annotations that the control plane writes on the job's object; other keys are labels."""


def view(world: World, labels: dict[str, str]) -> JobView:
    """Returns the job as the cluster shows it."""
    if world.ended:
        return JobView(nodes=tuple(map(_node_object, world.nodes.values())))
    mindio = world.knobs.side == "mindio"
    able = "single_operator,megatron" if mindio else "replace_rank_0"
    written = {key: value for key, value in labels.items() if key not in ANNOTATIONS}
    noted = {key: value for key, value in labels.items() if key in ANNOTATIONS}
    allows = world.knobs.allows or ("exit" if mindio else "")  # MindIO's processes are not played
    words = {keys.RECOVER_STRATEGY: allows, keys.ELASTIC: world.knobs.elastic}
    allowed = {key: said for key, said in words.items() if said}
    meta = ObjectMeta(name="gpt", uid=JOB, labels=written, annotations={**noted, keys.CAPABILITIES: able, **allowed})
    template = PodTemplate(command=("train",))
    spec = JobSpec(pods=world.knobs.pods, ranks_per_pod=RANKS, template=template, training_side=world.knobs.side)
    kind: dict[str, Any] = {"kind": "AscendJob", "traits": (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS)} if mindio else {}
    job = JobObject(**kind, metadata=meta, spec=spec, observe=world.observed)
    return JobView(
        job=job, pods=tuple(map(_pod_object, world.pods.values())), nodes=tuple(map(_node_object, world.nodes.values()))
    )


def _pod_object(pod: Pod) -> PodObject:
    return _pod_as(*astuple(pod))


@lru_cache(maxsize=10_000)
def _pod_as(*fields: Any) -> PodObject:
    """Returns a pod object, cached because the same pods are shown repeatedly."""
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
    marks = isolation({}, node.isolated) if node.isolated else {}
    conditions = tuple(one.model_copy(update={"last_transition_time": node.since}) for one in (ready, sick))
    meta = ObjectMeta(name=node.name, uid=f"uid-{node.name}", annotations={key: mark for key, mark in marks.items() if mark})
    return NodeObject(metadata=meta, status=NodeStatus(accelerators=1, conditions=conditions))


# ---- what workflows ask of the world


def write(order: Order, training: Training, recovery: str) -> None:
    """Writes an order of a recovery to the stream of the training side."""
    training.ordered_by, training.newest = recovery, max(training.newest, order.uuid)
    if order.name in OPERATIONS:
        training.operate(Operation(order.name, order.uuid, _links(order), _ops(order)))
        return
    ranks, in_place = tuple(fault.rank for fault in order.fault_ranks), "fault_nodes_restart" in order.actions
    training.order(order.name, order.uuid, ranks, order.node_rank_ids, in_place=in_place)


class Activities:
    """Carries out activities: those over pods, orders, and queries of the entity."""

    def __init__(self, driver: Driver, world: World, labels: dict[str, str]) -> None:
        self._driver, self._world, self._labels = driver, world, labels

    def perform(self, activity: Activity, attempt: int) -> None:
        try:
            getattr(self, f"_{activity.name}")(activity, attempt)
        except Missing as error:
            activity.fail(attempt, ApplicationError(str(error), type=NotFound.type, non_retryable=True))
        except Refused as error:
            activity.fail(attempt, ApplicationError(str(error), type="cluster.invalid", non_retryable=True))
        except Away as error:
            activity.fail(attempt, _away(str(error)))

    def _deliver_order(self, activity: Activity, attempt: int) -> None:
        training = self._world.training
        if training.session and training.queue == activity.queue:
            write(activity.argument(Order), training, activity.run.id)
            activity.complete(attempt)
        else:
            activity.fail(attempt, ApplicationError("no stream here", type="training_side.not_attached"))

    def _end_session(self, activity: Activity, attempt: int) -> None:
        if self._world.training.session == activity.argument(EndSession).session:
            self._world.training.cut()
        activity.complete(attempt)

    def _ensure_backup(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(BackupRequest)
        old, backup = self._world.make_backup(request.pod_rank, request.name_suffix, request.avoid_nodes)
        activity.complete(attempt, Backup(old=_ref(old), backup=_ref(backup)))

    def _ensure_replacement(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(BackupRequest)
        old, backup = self._world.replace_lost(request.pod_rank, request.name_suffix, request.avoid_nodes, waits=request.waits)
        activity.complete(attempt, Replacement(old=_ref(old) if old else None, backup=_ref(backup)))

    def _await_scheduled(self, activity: Activity, attempt: int) -> None:
        def answer(pods: list[Pod]) -> Scheduled:
            name = pods[0].node if pods else ""
            sick = bool(name) and self._world.nodes[name].sick
            return Scheduled(node=name, sub_healthy=sick, message="no node" if pods else "the pod is gone")

        self._await(activity, attempt, lambda pods: all(pod.node or pod.over or pod.leaving for pod in pods), answer)

    def _await_running(self, activity: Activity, attempt: int) -> None:
        wanted = len(activity.argument(PodsRequest).pods)

        def done(pods: list[Pod]) -> bool:
            ended = len(pods) < wanted or any(pod.over or pod.leaving for pod in pods)
            return ended or all(pod.phase == "Running" for pod in pods)

        self._await(activity, attempt, done, lambda pods: _started(pods, wanted))

    def _make_anew(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(RecreationRequest)
        held = {one.pod_rank: one for one in request.held}

        def come(pods: list[Pod]) -> list[Pod]:
            here = (pod for pod in pods if pod.node and not (pod.over or pod.leaving) and pod.node not in request.lost_nodes)
            return [pod for pod in here if not held[pod.rank].is_held_by(pod.uid)]

        def answer(pods: list[Pod]) -> Recreation:
            new = {pod.rank: pod for pod in come(pods)}
            before = {rank: PodRef(name="", uid=held[rank].holder, rank=rank) for rank in new}
            moved = tuple(Switched(pod_rank=rank, before=before[rank], after=_ref(new[rank])) for rank in sorted(new))
            missing = ", ".join(f"pod rank {rank} has no pod" for rank in held if rank not in new)
            return Recreation(moved=moved, came=tuple(sorted(new)), missing=missing)

        for pod in [pod for pod in self._world.pods.values() if pod.rank in held and held[pod.rank].is_held_by(pod.uid)]:
            self._world.delete(pod.uid, 0)
        wanted = request.enough or len(held)
        self._follow(
            activity,
            attempt,
            request.within,
            lambda pod: pod.rank in held and not pod.backup,
            lambda pods: len({pod.rank for pod in come(pods)}) >= wanted,
            answer,
        )

    def _await_gone(self, activity: Activity, attempt: int) -> None:
        self._await(activity, attempt, lambda pods: not pods, lambda pods: [_ref(pod) for pod in pods])

    def _await_old_gone(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(OldPodsRequest)
        self._follow(
            activity, attempt, request.within, lambda pod: not _is_new(pod, request.restart), lambda pods: not pods, _count
        )

    def _await_new_running(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(NewPodsRequest)
        names: set[str] = set()

        def settled(pods: list[Pod]) -> bool:
            names.update(pod.name for pod in pods)
            ended = len(pods) < len(names) or any(pod.over or pod.leaving for pod in pods)
            return ended or (len(pods) >= request.pods and all(pod.phase == "Running" for pod in pods))

        def answer(pods: list[Pod]) -> Started:
            return _started(pods, max(request.pods, len(names)))

        self._follow(activity, attempt, request.within, lambda pod: _is_new(pod, request.restart), settled, answer)

    def _look_at_new_pods(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(NewPodsRequest)
        self._world.answer()
        pods = [pod for pod in self._world.pods.values() if _is_new(pod, request.restart)]
        there = len(pods) >= request.pods and not any(pod.over or pod.leaving for pod in pods)
        activity.complete(attempt, Started(running=there, message="" if there else _words(pods)))

    def _look_at_job(self, activity: Activity, attempt: int) -> None:
        self._world.answer()
        activity.complete(attempt, JobLook(phase=None if self._world.ended else JobPhase.RUNNING))

    def _survey(self, activity: Activity, attempt: int) -> None:
        names = activity.argument(SurveyRequest).nodes
        self._world.answer()
        everything = view(self._world, self._labels)
        if everything.job is None:
            activity.complete(attempt, Survey(exists=False, ended=end_of(None)))
            return
        nodes = tuple(node for node in everything.nodes if node.metadata.name in names)
        sighting = sight(everything.model_copy(update={"nodes": nodes}))
        activity.complete(attempt, Survey(exists=True, phase=JobPhase.RUNNING, sighting=sighting, nodes=names))

    def _await(
        self, activity: Activity, attempt: int, done: Callable[[list[Pod]], bool], answer: Callable[[list[Pod]], object]
    ) -> None:
        request = activity.argument(PodsRequest)
        uids = {pod.uid for pod in request.pods}
        self._follow(activity, attempt, request.within, lambda pod: pod.uid in uids, done, answer)

    def _follow(
        self,
        activity: Activity,
        attempt: int,
        within: timedelta,
        wanted: Callable[[Pod], bool],
        done: Callable[[list[Pod]], bool],
        answer: Callable[[list[Pod]], object],
    ) -> None:
        """Waits for pods with the cluster's watch, which sends nothing while the cluster is away."""
        world = self._world

        def look(*, late: bool = False) -> None:
            if look not in world.changed or not (late or world.knobs.answers):
                return
            pods = [pod for pod in world.pods.values() if wanted(pod)]
            if not late and not done(pods):
                return
            world.changed.remove(look)
            if world.knobs.answers:
                activity.complete(attempt, answer(pods))
            else:
                activity.fail(attempt, _away("the cluster does not answer"))

        world.changed.append(look)
        left = within - (self._driver.now - activity.scheduled)
        self._driver.after(max(0.0, left.total_seconds()), lambda: look(late=True))
        look()

    def _swap(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(SwapRequest)
        self._world.answer()
        backup = self._world.pods.get(request.backup.uid)
        alive = backup is not None and backup.alive
        if alive and request.old:
            self._world.delete(request.old.uid, 0)
        activity.complete(attempt, Swap(old_deleted=alive, message="" if alive else "the backup pod is gone"))

    def _promote(self, activity: Activity, attempt: int) -> None:
        self._world.promote(activity.argument(SwapRequest).backup.uid)
        activity.complete(attempt)

    def _delete_backups(self, activity: Activity, attempt: int) -> None:
        pods = self._world.delete_backups(activity.argument(StopRequest).grace_seconds)
        activity.complete(attempt, [_ref(pod) for pod in pods])

    def _sweep(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(SweepRequest)
        self._world.answer()
        here = [pod for pod in self._world.pods.values() if not pod.backup]
        left = [pod.uid for pod in here if pod.uid[:HOLDER_LENGTH] == request.have_left.get(pod.rank, "")]
        for uid in (*(pod.uid for pod in request.pods), *left):
            self._world.delete(uid, 0)
        activity.complete(attempt)

    def _delete_left(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(LeftRequest)
        self._world.answer()
        for pod in [pod for pod in self._world.pods.values() if pod.rank in request.pod_ranks and not pod.backup]:
            self._world.delete(pod.uid, 0)
        activity.complete(attempt)

    def _delete_pods(self, activity: Activity, attempt: int) -> None:
        pods = self._world.delete_all(activity.argument(StopRequest).grace_seconds)
        activity.complete(attempt, _count(pods).model_copy(update={"youngest": self._driver.now}))

    def _ensure_pods(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(StartRequest)
        activity.complete(attempt, _count(self._world.make_pods(request.generation, request.avoid_nodes)))

    def _publish_policy(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(PolicyRequest)
        self._world.answer()
        self._labels[keys.SUB_HEALTHY_STRATEGY] = request.strategy
        self._labels.pop(keys.DOWNGRADED, None)
        if request.reason:
            self._labels[keys.DOWNGRADED] = request.reason
        self._world.change()
        activity.complete(attempt)

    def _remember(self, activity: Activity, attempt: int) -> None:
        self._world.answer()
        self._labels[keys.MEMORY] = activity.argument(RememberRequest).memory.model_dump_json()
        self._world.change()
        activity.complete(attempt)

    def _record_event(self, activity: Activity, attempt: int) -> None:
        self._world.answer()
        activity.complete(attempt)

    # ---- operations

    def _resolve_links(self, activity: Activity, attempt: int) -> None:
        request = activity.argument(ResolveLinksRequest)
        activity.complete(attempt, resolved(self._devices(), request.links))

    def _find_targets(self, activity: Activity, attempt: int) -> None:
        request, rows = activity.argument(TargetsRequest), self._devices()
        problem = device_checks.problem(request.stress, rows, request.accepted)
        asked = () if problem else device_checks.grouped(device_checks.plan(request.stress, rows))
        activity.complete(attempt, StressTargets(asked=asked, problem=problem or ""))

    def _judge(self, activity: Activity, attempt: int) -> None:
        request, rows = activity.argument(FindingsRequest), self._devices()
        tested = device_checks.tested(request.results, device_checks.by_rank(request.asked), rows)
        for name in tested.findings.isolate:
            self._world.isolate(name, device_checks.reason(tested, name, request.why))
        found = device_checks.without(tested, {})
        faults = device_checks.faults(found, Layout(self._world.knobs.pods, RANKS), rows)
        activity.complete(attempt, Found(tested=found, faults=faults))

    def _devices(self) -> tuple[DeviceOfRank, ...]:
        self._world.answer()
        shown = view(self._world, self._labels)
        if shown.job is None:
            raise Missing("the job is gone")
        return devices(shown)

    def _links_now(self, activity: Activity, attempt: int) -> None:
        run = self._driver.running(ENTITY)
        if run and not run.has_begun:
            self._driver.after(0.05, lambda: self._links_now(activity, attempt))
        elif run and (state := self._driver.query(ENTITY, Queries.STATUS, JobStatus).state).lost_recovery:
            activity.fail(attempt, ApplicationError("its last recovery is not settled", type=Unavailable.type))
        elif run:
            activity.complete(attempt, state.links)
        else:
            activity.fail(attempt, ApplicationError("no such job", type=ErrorTypes.JOB_UNKNOWN, non_retryable=True))

    def _find_job(self, activity: Activity, attempt: int) -> None:
        if self._driver.running(ENTITY):
            activity.complete(attempt, JOB)
        else:
            activity.fail(attempt, ApplicationError("no such job", type=ErrorTypes.JOB_UNKNOWN, non_retryable=True))

    def _hold_request(self, activity: Activity, attempt: int) -> None:
        asked = activity.argument(AskRequest)

        def answered(answer: Answer) -> None:
            if not answer.kind and answer.value is not None:
                activity.complete(attempt, PAYLOADS.from_payloads([answer.value], [Verdict])[0])
            elif answer.kind == "again":
                activity.fail(attempt, ApplicationError("again"))
            else:
                activity.fail(attempt, _refusal(answer))

        self._driver.update(ENTITY, Updates.RECOVER, [asked.request], asked.request_id, answered)

    def _ask(self, activity: Activity, attempt: int) -> None:
        """Completes when the job accepts the request: a refusal comes at once, a verdict takes longer."""
        asked = activity.argument(AskRequest)
        said: list[Answer] = []

        def accepted() -> None:
            run = self._driver.running(ENTITY)
            update = run.updates.get(asked.request_id) if run else None
            if said and said[0].kind not in ("", "again"):
                activity.fail(attempt, _refusal(said[0]))
            elif said and said[0].kind == "again":
                activity.fail(attempt, ApplicationError("again"))
            elif said or (update and update.accepted):
                activity.complete(attempt)
            else:
                self._driver.after(0.05, accepted)

        self._driver.update(ENTITY, Updates.RECOVER, [asked.request], asked.request_id, said.append)
        accepted()

    def _withdraw_request(self, activity: Activity, attempt: int) -> None:
        asked = activity.argument(WithdrawRequest)

        def answered(answer: Answer) -> None:
            if answer.kind == "again":
                activity.fail(attempt, ApplicationError("again"))
            else:
                activity.complete(attempt)

        self._driver.update(ENTITY, Updates.WITHDRAW, [asked.request_id], f"withdraw/{asked.request_id}", answered)

    def _await_recovery_end(self, activity: Activity, attempt: int) -> None:
        run = self._driver.runs.get(activity.argument(str))
        if run is None:
            activity.complete(attempt, RecoveryEnd(settled=False, words="nothing is known of its end", known=False))
        elif run.status == "running":
            self._driver.after(0.5, lambda: self._await_recovery_end(activity, attempt))
        else:
            settled = is_settled(run) or has_waited_only(run)
            end = RecoveryEnd(settled=settled, words=run.status, verdict=verdict_of(run), began=run.began)
            activity.complete(attempt, end)

    def _terminate_recovery(self, activity: Activity, attempt: int) -> None:
        self._driver.terminate(activity.argument(TerminateRequest).workflow_id)
        activity.complete(attempt)


def _refusal(answer: Answer) -> ApplicationError:
    """Returns the error of an update as the activities translate it."""
    kinds = {"not found": ErrorTypes.JOB_UNKNOWN, "accepted last": ErrorTypes.WORKFLOW_LOST}
    return ApplicationError(answer.message, type=kinds.get(answer.kind, answer.kind), non_retryable=True)


def _links(order: Order) -> tuple[tuple[int, bool], ...]:
    there = order.links or RankLinks()
    return tuple(sorted([*((rank, True) for rank in there.backup), *((rank, False) for rank in there.first)]))


def _ops(order: Order) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(sorted((rank, one.ops) for one in order.stress for rank in one.ranks))


def _ref(pod: Pod) -> PodRef:
    return PodRef(name=pod.name, uid=pod.uid, node=pod.node, rank=pod.rank)


def _away(words: str) -> ApplicationError:
    return ApplicationError(words, type=ClusterUnavailable.type)


def _is_new(pod: Pod, restart: Restart) -> bool:
    """Returns whether the pod was created by this restart."""
    return pod.generation == restart.generation or restart.youngest is None


def _count(pods: list[Pod]) -> PodCount:
    return PodCount(count=len(pods), names=tuple(pod.name for pod in pods))


def _started(pods: list[Pod], wanted: int) -> Started:
    runs = len(pods) >= wanted and all(pod.alive for pod in pods)
    return Started(running=runs, message="" if runs else f"{len(pods)} of {wanted} pods are there: {_words(pods)}")


def _words(pods: list[Pod]) -> str:
    return ", ".join(f"{pod.name} {pod.phase}" for pod in pods)
