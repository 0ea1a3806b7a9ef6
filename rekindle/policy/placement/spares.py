"""Decides which job gets a spare node while fewer are free than recoveries need. Pure.

The claim with the higher priority comes first, then the one whose loss costs more, then the one that asked first. A pod that is
being created is not stopped for a later claim.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rekindle.model.activities.pods import PodCount
from rekindle.model.bounds import few, fitting, note
from rekindle.model.cluster import Node, Pod, PodRole
from rekindle.model.fault import FaultKind
from rekindle.model.incident import RecoveryContext
from rekindle.model.job import Drain
from rekindle.model.keys import POD_TYPE
from rekindle.model.mode import Mode
from rekindle.model.spares import (
    MOST_AVOIDED,
    MOST_AVOIDED_BYTES,
    MOST_CLAIMS,
    MOST_FREE,
    MOST_PLACED,
    SpareAnswer,
    SpareClaim,
    SpareNews,
    SpareQuestion,
    SpareView,
    SpareWish,
)
from rekindle.policy.detection.pod_ranks import is_over, is_standby
from rekindle.policy.modes import faulty_ranks
from rekindle.policy.training_sides.table import side_of

NEEDS_SPARE = (Mode.HOT_SWITCH, Mode.PROCESS_RESCHEDULING, Mode.POD_RESCHEDULING)
"""Modes that create pods beside those of the job, and claim nodes for them. A restart is only compared with these claims."""

TRAINS = (Mode.HOT_SWITCH, Mode.SCALING)
"""Modes without which training goes on, so that a spare node costs nothing where it is missing."""

ANNOUNCED = timedelta(minutes=1)
"""Time for which a claim counts whose pods are not being created yet. Later it counts again with its question."""

HELD = timedelta(seconds=20)
"""Time in which the scheduler puts the pods of a granted claim on nodes. Pods that still have none can use no free node."""

NAMED = timedelta(minutes=10)
"""Time for which a granted claim is kept, to be named to others. It ends with its recovery."""

FIRST = datetime.min.replace(tzinfo=UTC)


# ---- claims


def wish(mode: Mode, context: RecoveryContext, pods: int) -> SpareWish:
    """Returns the spare nodes that a mode needs for this number of new pods."""
    job = context.job
    return SpareWish(
        job=f"{job.namespace}/{job.name}",
        incident=context.incident,
        mode=mode,
        priority=job.priority,
        cost=0 if mode in TRAINS and not _is_restarted(context) else job.ranks,
        pods=pods,
        avoid_nodes=fitting(context.avoid_nodes, MOST_AVOIDED_BYTES, MOST_AVOIDED),
    )


def wish_of_restart(context: RecoveryContext, deleted: PodCount) -> SpareWish | None:
    """Returns the nodes that a restart of the whole job needs, as far as other recoveries may need them too.

    None: its pods were deleted before, so that it is unknown what they need.
    """
    if not deleted.accelerators:
        return None
    known = wish(Mode.JOB_RESCHEDULING, context, context.job.pods)
    priority = deleted.priority if known.priority is None else known.priority
    its_pods = {"need": deleted.accelerators, "demands": deleted.demands, "priority": priority}
    return known.model_copy(update={**its_pods, "holds": False})


def avoiding(wanted: SpareWish, nodes: Iterable[str]) -> SpareWish:
    """Returns a wish for spare nodes that are none of these either."""
    known = dict.fromkeys((*nodes, *wanted.avoid_nodes))
    return wanted.model_copy(update={"avoid_nodes": fitting(known, MOST_AVOIDED_BYTES, MOST_AVOIDED)})


def _is_restarted(context: RecoveryContext) -> bool:
    """Returns whether a hot switch without a spare leads to a restart of the job, which only a drain does."""
    faults = [fault for fault in context.situation.faults if fault.kind is FaultKind.SUB_HEALTH]
    is_drained = bool(faults) and all(fault.is_maintenance for fault in faults)
    return is_drained and context.job.drain is Drain.RESCHEDULE


def news(mode: Mode, context: RecoveryContext) -> SpareNews:
    """Returns what a job needs while it runs a mode. The mode says more when it knows its pods."""
    if mode is Mode.HOT_SWITCH:
        return SpareNews(wish=wish(mode, context, 1))
    if mode not in NEEDS_SPARE or side_of(context.job).controller_recreates:  # whose pods the cluster places by itself
        return SpareNews()
    ranks = [one for fault in context.situation.faults for one in faulty_ranks.ranks_of(context.job, fault)]
    pods = faulty_ranks.pods_of(context.job, ranks)
    return SpareNews(wish=wish(mode, context, max(1, len(pods))))


def claim_of(job_id: str, wanted: SpareWish, pods: Sequence[Pod]) -> SpareClaim | None:
    """Returns the claim of a job with these pods.

    None: its pods need no accelerators, so that any node has room, or its standbys are enough.
    """
    ranks = [pod for pod in pods if not is_standby(pod)]
    need = wanted.need or max((pod.spec.accelerators for pod in ranks), default=0)
    count = wanted.pods - sum(is_standby(pod) and not (is_over(pod) or pod.metadata.deletion_timestamp) for pod in pods)
    if need <= 0 or count <= 0:
        return None
    priority = max((pod.spec.priority for pod in ranks), default=0) if wanted.priority is None else wanted.priority
    return SpareClaim(
        job_id=job_id,
        job=wanted.job,
        incident=wanted.incident,
        mode=wanted.mode,
        priority=priority,
        cost=wanted.cost,
        pods=count,
        need=need,
        demands=wanted.demands or next((pod.spec.demands for pod in ranks if pod.spec.demands), ""),
        avoid_nodes=wanted.avoid_nodes,
        holds=wanted.holds,
    )


def with_claim(claims: Sequence[SpareClaim], new: SpareClaim, now: datetime) -> tuple[SpareClaim, ...]:
    """Returns the claims with a new one, which replaces an earlier one of its job.

    The time of the first one in the incident stays, as does a spare that the same mode was granted. A claim that is one too many
    is not kept.
    """
    before = next((one for one in claims if one.job_id == new.job_id and one.incident == new.incident), None)
    taken = before.taken if before and before.mode is new.mode and not before.placed else None
    since = before.since if before and before.since else now
    until = before.until if before and taken else now + ANNOUNCED
    others = without(claims, new.job_id)
    if len(others) >= MOST_CLAIMS:
        return others
    return (*others, new.model_copy(update={"since": since, "until": until, "taken": taken}))


def without(claims: Iterable[SpareClaim], job_id: str) -> tuple[SpareClaim, ...]:
    return tuple(one for one in claims if one.job_id != job_id)


def words(claim: SpareClaim) -> str:
    """Returns a description of a claim for people."""
    state = "pods are being created" if claim.taken else "begun"
    return f"{claim.job}, {claim.mode}: priority {claim.priority}, {claim.cost} ranks would start again, {state}"


def current(claims: Iterable[SpareClaim], now: datetime) -> tuple[SpareClaim, ...]:
    """Returns the claims whose time is not over. Pods of a granted claim have had the time to get nodes after a while."""
    kept = (one for one in claims if one.until is None or one.until > now)
    return tuple(one.model_copy(update={"placed": True}) if one.taken and one.taken + HELD <= now else one for one in kept)


# ---- the view


class Occupant(NamedTuple):
    """Pod with a node that is not over, of any job or of none."""

    node: str
    accelerators: int
    gives_way: bool = False
    """True for a standby, which any other pod preempts."""

    backup_of: str = ""
    """Id of the job whose rank the pod is to take over. Empty: it is no backup pod."""


def occupant(pod: Pod) -> Occupant:
    """Returns what a pod occupies, if it belongs to the job that owns it."""
    metadata = pod.metadata
    backup_of = metadata.owner_uid if metadata.annotations.get(POD_TYPE) == PodRole.BACKUP else ""
    return Occupant(pod.spec.node_name, pod.spec.accelerators, is_standby(pod), backup_of)


def view_of(nodes: Iterable[Node], unfit: Iterable[str], occupants: Iterable[Occupant]) -> SpareView:
    """Returns the free accelerators of the nodes on which backup pods may be placed."""
    left_out, placed = set(unfit), dict[str, int]()
    free = {node.metadata.name: node.status.accelerators for node in nodes if node.metadata.name not in left_out}
    for one in occupants:
        if one.backup_of:
            placed[one.backup_of] = placed.get(one.backup_of, 0) + 1
        if one.node in free and not one.gives_way:
            free[one.node] -= one.accelerators
    found = sorted((name for name, count in free.items() if count > 0), key=lambda name: (-free[name], name))
    listed = {name: free[name] for name in found[:MOST_FREE]}
    return SpareView(free=listed, placed=dict(list(placed.items())[:MOST_PLACED]), plenty=len(found) > MOST_FREE)


# ---- the decision


def answered(claims: Sequence[SpareClaim], question: SpareQuestion, now: datetime) -> tuple[SpareAnswer, tuple[SpareClaim, ...]]:
    """Returns the answer to a question, and the claims after it.

    A claim that holds nothing is compared with the others, and not kept.
    """
    known = with_claim(current(claims, now), question.claim, now)
    own = next((one for one in known if one.job_id == question.claim.job_id), None)
    if own is None:
        return SpareAnswer(granted=True), known
    if question.view:
        known = tuple(one if one is own else _seen(one, question.view) for one in known)
    answer = _answer(known, own, question.view)
    if answer.granted and not own.taken:
        kept = own.model_copy(update={"taken": now, "until": now + NAMED})
        known = tuple(kept if one is own else one for one in known)
    return answer, known if own.holds else without(known, own.job_id)


def _answer(claims: Sequence[SpareClaim], own: SpareClaim, view: SpareView | None) -> SpareAnswer:
    alike = [one for one in claims if one is not own and one.demands == own.demands]
    rivals = [one for one in alike if not one.placed]
    if rivals and not own.taken:
        if view is None:
            return SpareAnswer(look=True)
        if reason := refusal(view, [*rivals, own], own):
            return SpareAnswer(reason=note(reason))
    before = [f"the {one.mode} of job {one.job}" for one in alike if one.taken]
    words = f"{few(before, between=' and ')} asked for a spare node first" if before else ""
    return SpareAnswer(granted=True, note=note(words))


def _seen(claim: SpareClaim, view: SpareView) -> SpareClaim:
    placed = claim.placed or claim.pods <= view.placed.get(claim.job_id, 0)
    return claim.model_copy(update={"placed": placed, "taken": claim.taken or (claim.since if placed else None)})


def refusal(view: SpareView, claims: Sequence[SpareClaim], own: SpareClaim) -> str:
    """Returns why another claim gets the spare that this one needs. Empty: none does.

    A claim that cannot be met although none comes before it is not refused: the cluster decides, as without other claims.
    """
    claims = [one for one in claims if order(one) <= order(own)]  # a later one would only move earlier ones
    nodes = {} if view.plenty else _nodes_of(view, claims)
    if view.plenty or own.job_id in nodes:
        return ""
    before = [one for one in claims if order(one) < order(own) and set(nodes.get(one.job_id, ())) - set(own.avoid_nodes)]
    if not before:
        return ""
    winner = max(before, key=order)
    return f"the spare node goes to the {winner.mode} of job {winner.job}: {_why(winner, own)}"


def order(claim: SpareClaim) -> tuple[bool, int, int, datetime, str]:
    """Returns the sort key of claims: the first one gets what it needs."""
    return claim.taken is None, -claim.priority, -claim.cost, claim.since or FIRST, claim.job_id


def _why(winner: SpareClaim, own: SpareClaim) -> str:
    if winner.taken:
        return "its pod is already being created"
    if winner.priority != own.priority:
        return f"its priority is {winner.priority}, that of this job is {own.priority}"
    if winner.cost != own.cost:
        return f"the priorities are equal, and without it {winner.cost} ranks would start again there, {own.cost} here"
    return "priority and cost are equal, and it asked first"


def _nodes_of(view: SpareView, claims: Iterable[SpareClaim]) -> dict[str, list[str]]:
    """Returns the nodes of each claim that gets all that it needs, by job id. No claim gives way to one that comes later."""
    plan = _Plan(view.free)
    for claim in sorted(claims, key=order):
        plan.add(claim, claim.pods - view.placed.get(claim.job_id, 0))
    return plan.nodes


class _Plan:
    """Places the pods of one claim after the other. Those that have a place may change it, and never lose it."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._left = dict(free)
        self._held: dict[str, tuple[SpareClaim, ...]] = dict.fromkeys(free, ())
        self._met: set[str] = set()

    @property
    def nodes(self) -> dict[str, list[str]]:
        """Nodes of the claims that got all that they need, by job id."""
        found: dict[str, list[str]] = {job_id: [] for job_id in self._met}
        for node, held in self._held.items():
            for claim in held:
                found[claim.job_id].append(node)
        return found

    def add(self, claim: SpareClaim, pods: int) -> None:
        before = dict(self._left), dict(self._held)
        if all(self._place(claim, set()) for _ in range(pods)):
            self._met.add(claim.job_id)
        else:
            self._left, self._held = before

    def _place(self, claim: SpareClaim, seen: set[str]) -> bool:
        """Places one pod, by an augmenting path: a pod that was placed before may move to another node.

        Each node is looked at once. A workflow searches, and its task is taken for a deadlock after two seconds.
        """
        usable = sorted((self._left[node], node) for node in self._left.keys() - seen - {*claim.avoid_nodes})
        if node := next((node for left, node in usable if left >= claim.need), ""):
            self._put(claim, node)
            return True
        for left, node in usable:
            if node in seen:  # looked at for a pod that was placed before
                continue
            seen.add(node)
            holders = {one.job_id: one for one in self._held[node] if left + one.need >= claim.need}
            if other := next((one for one in holders.values() if self._place(one, seen)), None):
                self._remove(other, node)
                self._put(claim, node)
                return True
        return False

    def _put(self, claim: SpareClaim, node: str) -> None:
        self._left[node] -= claim.need
        self._held[node] = (*self._held[node], claim)

    def _remove(self, claim: SpareClaim, node: str) -> None:
        self._left[node] += claim.need
        held = list(self._held[node])
        held.remove(claim)
        self._held[node] = tuple(held)
