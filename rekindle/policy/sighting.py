"""What matters of a job's pods and nodes, as one value: all that its workflow is told of the cluster. Pure.

Called by the watcher for what it sees, and by the activity `survey` for what the cluster answers. There is no memory and no clock
here: the same world gives an equal value, whoever looks and however often. docs/intake.md has an example.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from rekindle.model.bounds import cut
from rekindle.model.cluster import (
    Condition,
    JobObject,
    JobPhase,
    JobView,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodRole,
    condition_of,
)
from rekindle.model.fault import HOLDER_LENGTH, UNKNOWN_HOLDER, WATCHER, Fault, FaultKind, Sighting
from rekindle.model.keys import GENERATION, REPLICA_TYPE
from rekindle.model.sizes import MOST_STANDBYS
from rekindle.model.standby import Standby
from rekindle.policy.pod_ranks import RankedPod, is_standby, problems, ranked

READY, SUB_HEALTHY = "Ready", "SubHealthy"
"""Types of conditions of nodes."""

MOST_FAULTS = 100
MOST_BYTES = 8 * 1024
"""Faults of one kind, and their JSON; the last one of a longer list stands for the rest. They are kept in the state of the job's
workflow, beside 5,000 holders and twenty incidents."""

NAMED_PODS = 10
LONGEST_MESSAGE = 160
"""Bytes of somebody else's words that are passed on: two hundred faults have to fit into one payload."""

LONGEST_CODE = 80


def end_of(job: JobObject | None) -> str:
    """Why a job is over; empty: it lives. One whose pods all failed may be brought back; one that is resumed begins anew."""
    if job is None or job.metadata.deletion_timestamp:
        return "the job was deleted"
    if job.status.phase is JobPhase.SUCCEEDED:
        return "the job succeeded"
    return "the job was suspended" if job.suspended else ""


def sight(view: JobView) -> Sighting:
    """All that matters of a job as the cluster shows it. A rank that lost its holder is not found here, where nothing is
    remembered: the job's workflow compares the holders with those that it knows."""
    if view.job is None:
        return Sighting()
    count = view.job.spec.pods
    pods = ranked(view.pods)
    holding = [one for one in pods if one.holds and one.rank is not None and one.rank < count]
    with_rank = [one for one in pods if one.rank is not None]
    generation = _commonest(_generation(one) for one in holding)
    return Sighting(
        holders=_holders(holding, count),
        generation=generation,
        manager=_manager(view.pods),
        faults=(
            *_lost_nodes(view.job, view.nodes, (one for one in with_rank if not one.backup and (one.lives or one.failed))),
            *_lost_nodes_of_backups(view.job, view.nodes, (one for one in with_rank if one.backup and one.lives)),
            *_failed(view.job, with_rank),
            *_sub_healths(view.job, view.nodes, with_rank),
        ),
        problems=problems(pods, count),
        standbys=standbys(view.pods, view.nodes, generation),
    )


def matters(node: Node) -> bool:
    """Whether something is wrong with it. Of other nodes nothing is ever told."""
    return _wrong(node, READY) is not None or _wrong(node, SUB_HEALTHY) is not None


def gone(name: str, version: int = 0) -> Node:
    """In the place of a node whose object was deleted: the cluster ends its pods a minute later, and until then they seem to
    run."""
    words = Condition(type=READY, status="Unknown", reason="NodeGone", message=f"node {name} was deleted")
    metadata = ObjectMeta(name=name, uid=name, resource_version=version)
    return Node(metadata=metadata, status=NodeStatus(accelerators=0, conditions=(words,)))


def is_lost(node: Node) -> bool:
    return _wrong(node, READY) is not None


def is_sub_healthy(node: Node) -> bool:
    return _wrong(node, SUB_HEALTHY) is not None


# ---- who holds which rank


def _holders(holding: Sequence[RankedPod], count: int) -> tuple[str, ...]:
    holders = [""] * count
    for one in holding:
        assert one.rank is not None
        holders[one.rank] = UNKNOWN_HOLDER if holders[one.rank] else one.pod.metadata.uid[:HOLDER_LENGTH]
    return tuple(holders)


def _generation(one: RankedPod) -> str:
    return one.pod.metadata.labels.get(GENERATION, "0")


def _commonest(generations: Iterable[str]) -> str:
    """Of two that are equally common the later one."""
    counts = Counter(generations)
    return max(counts, key=lambda generation: (counts[generation], len(generation), generation), default="")


def _manager(pods: Iterable[Pod]) -> str:
    """The manager's process that started last, if one runs."""
    started = [
        (pod.status.start_time.isoformat() if pod.status.start_time else "", pod.metadata.uid)
        for pod in pods
        if pod.metadata.labels.get(REPLICA_TYPE, "").lower() == PodRole.MANAGER
        and pod.status.phase is PodPhase.RUNNING
        and pod.metadata.deletion_timestamp is None
    ]
    if not started:
        return ""
    since, uid = max(started)
    return f"{uid}/{since}"


# ---- standbys


def standbys(pods: Iterable[Pod], nodes: Iterable[Node], generation: str) -> tuple[Standby, ...]:
    """Those that are not told to end.

    Args:
        generation: of the pods that hold ranks; empty: nobody knows.
    """
    wrong = {node.metadata.name: node for node in nodes if matters(node)}
    own = sorted(
        (pod for pod in pods if is_standby(pod) and not pod.metadata.deletion_timestamp), key=lambda pod: pod.metadata.name
    )
    return tuple(_standby(pod, wrong.get(pod.spec.node_name), generation) for pod in own[:MOST_STANDBYS])


def _standby(pod: Pod, wrong: Node | None, generation: str) -> Standby:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    waits = scheduled.message if scheduled and scheduled.status == "False" else ""
    return Standby(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        runs=pod.status.phase is PodPhase.RUNNING,
        waits=cut(waits, LONGEST_MESSAGE),
        wrong=cut(_wrong_standby(pod, wrong, generation), LONGEST_MESSAGE),
    )


def _wrong_standby(pod: Pod, node: Node | None, generation: str) -> str:
    if pod.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED):
        return f"it has ended: {pod.status.message or pod.status.reason or pod.status.phase}"
    if node:
        return f"its node {node.metadata.name} is {'lost' if is_lost(node) else 'sub-healthy'}"
    is_older = generation and pod.metadata.labels.get(GENERATION, "0") != generation
    return "all pods of the job have started anew" if is_older else ""


# ---- pods


def _failed(job: JobObject, pods: Iterable[RankedPod]) -> list[Fault]:
    """One fault for all pods of a generation that failed with the same exit code."""
    groups: dict[tuple[bool, str, str], list[RankedPod]] = {}
    for one in pods:
        if one.failed:
            exit_code = one.pod.status.exit_code
            code = "" if exit_code is None else f"exit {exit_code}"
            groups.setdefault((one.backup, _generation(one), code), []).append(one)
    found = [(key, _in_order(groups[key])) for key in sorted(groups)]
    faults = [_failure(job, code, group) for (_, _, code), group in found[:MOST_FAULTS]]
    return _with_the_rest(job, faults, [group for _, group in found[MOST_FAULTS:]], "exit codes")


def _failure(job: JobObject, code: str, pods: Sequence[RankedPod]) -> Fault:
    first = pods[0]
    nodes = {one.pod.spec.node_name for one in pods}
    status = first.pod.status
    words = cut(status.message or status.reason or code, LONGEST_MESSAGE)
    pod_ranks = _pod_ranks(job, pods)
    return Fault(
        id=f"{'backup-failed' if first.backup else 'failed'}/{_generation(first)}/{code}",
        kind=FaultKind.POD,
        pod_ranks=pod_ranks,
        ranks=_ranks(job, pod_ranks),
        node=first.pod.spec.node_name if len(nodes) == 1 else "",
        pod=first.pod.metadata.name,
        pod_uids=tuple(one.pod.metadata.uid for one in pods[:NAMED_PODS]),
        generation=_generation(first),
        backup=first.backup,
        code=code,
        message=_failed_words(pods, words),
        source=WATCHER,
    )


def _failed_words(pods: Sequence[RankedPod], words: str) -> str:
    """Of many pods the names come last: what does not fit is cut."""
    names = ", ".join(one.pod.metadata.name for one in pods[:NAMED_PODS])
    more = f" and {len(pods) - NAMED_PODS} more" if len(pods) > NAMED_PODS else ""
    return f"pod {names} failed: {words}" if len(pods) == 1 else f"{len(pods)} pods failed: {words} ({names}{more})"


# ---- nodes


def _lost_nodes(job: JobObject, nodes: Iterable[Node], pods: Iterable[RankedPod]) -> list[Fault]:
    """Nodes that are not ready, with the pods on them, dead or not."""
    here = _on(nodes, READY, pods)
    faults = []
    for node, condition, group in here[:MOST_FAULTS]:
        words = cut(condition.message or f"node {node.metadata.name} is lost", LONGEST_MESSAGE)
        fault = _node_fault(job, node, condition, group)
        faults.append(fault.model_copy(update={"kind": FaultKind.NODE, "message": words}))
    return _with_the_rest(job, faults, [group for _, _, group in here[MOST_FAULTS:]], "nodes")


def _lost_nodes_of_backups(job: JobObject, nodes: Iterable[Node], pods: Iterable[RankedPod]) -> list[Fault]:
    """The same for pods that are to take over: they come to no end of their own for minutes."""
    living = list(pods)
    return [
        fault.model_copy(update={"id": f"backup/{fault.id}", "backup": True, "pod_uids": _uids_on(fault.node, living)})
        for fault in _lost_nodes(job, nodes, living)
    ]


def _uids_on(node: str, pods: Iterable[RankedPod]) -> tuple[str, ...]:
    return tuple(one.pod.metadata.uid for one in _in_order(pods) if one.pod.spec.node_name == node)[:NAMED_PODS]


def _sub_healths(job: JobObject, nodes: Iterable[Node], pods: Iterable[RankedPod]) -> list[Fault]:
    """One fault for each pod of a rank on a sub-healthy node: each is moved by itself, and one that comes later is news."""
    here = _on(nodes, SUB_HEALTHY, (one for one in pods if one.lives and one.holds and (one.rank or 0) < job.spec.pods))
    sick = [(node, condition, one) for node, condition, group in here for one in _once_a_rank(group)]
    faults = []
    for node, condition, one in sick[:MOST_FAULTS]:
        fault = _node_fault(job, node, condition, [one])
        pod = {"pod": one.pod.metadata.name, "generation": _generation(one)}
        faults.append(fault.model_copy(update={**pod, "id": f"{fault.id}/{_generation(one)}/{one.rank}"}))
    return _with_the_rest(job, faults, [[one] for _, _, one in sick[MOST_FAULTS:]], "pods")


def _wrong(node: Node, kind: str) -> Condition | None:
    """Ready may be Unknown, which is as bad as False; a sub-health is seen or is not."""
    condition = condition_of(node.status.conditions, kind)
    return condition if condition and (condition.status == "True") == (kind == SUB_HEALTHY) else None


def _on(nodes: Iterable[Node], kind: str, pods: Iterable[RankedPod]) -> list[tuple[Node, Condition, list[RankedPod]]]:
    """The nodes whose condition of this kind is wrong and that have some of these pods, by name. Where no node is wrong, which is
    the usual case, no pod is looked at."""
    wrong = {node.metadata.name: (node, condition) for node in nodes if (condition := _wrong(node, kind))}
    here: dict[str, list[RankedPod]] = {}
    for one in pods if wrong else ():
        if one.pod.spec.node_name in wrong:
            here.setdefault(one.pod.spec.node_name, []).append(one)
    return [(*wrong[name], _in_order(here[name])) for name in sorted(here)]


def _node_fault(job: JobObject, node: Node, condition: Condition, pods: Sequence[RankedPod]) -> Fault:
    since = condition.last_transition_time
    code = condition.reason[:LONGEST_CODE]
    pod_ranks = _pod_ranks(job, pods)
    return Fault(
        id=f"{node.metadata.uid}/{code}/{since.isoformat() if since else ''}",
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=pod_ranks,
        ranks=_ranks(job, pod_ranks),
        node=node.metadata.name,
        code=code,
        pod_uids=(pods[0].pod.metadata.uid,) if len(pods) == 1 else (),
        message=cut(condition.message, LONGEST_MESSAGE),
        source=WATCHER,
    )


# ---- ranks, and lists that are too long


def _in_order(pods: Iterable[RankedPod]) -> list[RankedPod]:
    """Whatever order the cluster lists them in."""
    return sorted(pods, key=lambda one: (one.rank, _generation(one), one.pod.metadata.name, one.pod.metadata.uid))


def _once_a_rank(pods: Iterable[RankedPod]) -> list[RankedPod]:
    """Two pods of one rank are a problem of their own; a fault is told once."""
    return list({(one.rank, _generation(one)): one for one in pods}.values())


def _pod_ranks(job: JobObject, pods: Iterable[RankedPod]) -> tuple[int, ...]:
    """Without those that the job does not have: a fault that names one would be refused."""
    return tuple(sorted({one.rank for one in pods if one.rank is not None and one.rank < job.spec.pods}))


def _ranks(job: JobObject, pod_ranks: Iterable[int]) -> tuple[int, ...]:
    each = job.spec.ranks_per_pod
    return tuple(rank for pod_rank in pod_ranks for rank in range(pod_rank * each, (pod_rank + 1) * each))


def _with_the_rest(job: JobObject, faults: list[Fault], rest: Sequence[Sequence[RankedPod]], what: str) -> list[Fault]:
    """The last fault says how many more there are, and carries the pod ranks of all of them."""
    named = _fitting(faults)
    if named == len(faults) and not rest:
        return faults
    last, left_out = faults[named - 1], faults[named:]
    of_the_left_out = (rank for fault in left_out for rank in fault.pod_ranks)
    of_the_rest = _pod_ranks(job, (one for group in rest for one in group))
    pod_ranks = tuple(sorted({*last.pod_ranks, *of_the_left_out, *of_the_rest}))
    message = f"{cut(last.message, LONGEST_MESSAGE)} (and {len(left_out) + len(rest)} more {what})"
    told = last.model_copy(update={"pod_ranks": pod_ranks, "ranks": _ranks(job, pod_ranks), "message": message})
    return [*faults[: named - 1], told]


def _fitting(faults: Sequence[Fault]) -> int:
    """How many of them, from the first, fit into `MOST_BYTES`; the first one does in any case."""
    left = MOST_BYTES
    for number, fault in enumerate(faults):
        left -= len(fault.model_dump_json())
        if left < 0:
            return max(number, 1)
    return len(faults)
