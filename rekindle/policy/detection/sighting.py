"""Reduces a job's pods and nodes to a sighting: everything in the cluster that matters to the job's workflow. Pure.

Used by the watcher for what it sees, and by the activity `survey` for what the cluster answers. There is no memory and no clock
here, so that the same state of the cluster always gives an equal value. docs/intake.md has an example.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rekindle.model.bounds import cut, note
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
from rekindle.model.fault import (
    HOLDER_LENGTH,
    UNKNOWN_HOLDER,
    WATCHER,
    Decided,
    Fault,
    FaultKind,
    FaultType,
    FaultyRanks,
    Sighting,
)
from rekindle.model.keys import GENERATION, REPLICA_TYPE
from rekindle.model.rule_file import plain
from rekindle.model.rules import Rules, Then
from rekindle.model.sizes import MOST_STANDBYS
from rekindle.model.standby import Standby
from rekindle.policy.detection import refusals
from rekindle.policy.detection.device_names import shown
from rekindle.policy.detection.devices import Held, Struck, held_by_node, struck
from rekindle.policy.detection.job_filters import filters
from rekindle.policy.detection.pod_ranks import RankedPod, is_standby, problems, ranked
from rekindle.policy.detection.rules import Finding, of_node, of_pod, said_of

SUCCEEDED, FAILED = "the job succeeded", "the job failed for good"
"""Reasons why a job has ended. The second one is followed by the words of the job's controller."""

READY = "Ready"
"""Type of the condition of a node that no rule decides about."""

TYPES = {Then.PROCESS: FaultType.OTHER, Then.MEMORY: FaultType.MEMORY, Then.NETWORK: FaultType.NETWORK}
"""Types of faults that a restart in place or a repeated step may repair, by the meaning of the rule."""

DEGRADED = (Then.SUB_HEALTH, Then.MAINTENANCE)

MOST_FAULTS = 100
MOST_BYTES = 8 * 1024
"""Maximum number of faults of one kind, and of bytes of their JSON. The last fault of a longer list stands for the rest. They are
kept in the state of the job's workflow, beside 5,000 holders and twenty incidents."""
MOST_BYTES_OF_RULES = 3 * 1024
"""Maximum number of bytes for each kind of real faults that rules have decided. There are four such kinds."""

MOST_UNBELIEVED = 20
"""Maximum number of rules. A fault by a rule beyond it continues as the same fault if it comes back."""

NAMED_PODS = 10
LONGEST_MESSAGE = 160
"""Maximum number of bytes of a message by others. Two hundred faults have to fit into one payload."""

LONGEST_CODE = 80


def end_of(job: JobObject | None) -> str:
    """Returns why a job has ended. Empty: it has not. A job whose pods all failed may be restarted; a suspended one starts over
    when it is resumed."""
    if job is None or job.metadata.deletion_timestamp:
        return "the job was deleted"
    if not job.managed:
        return "nothing on the job asks for recoveries any more"
    if job.status.phase is JobPhase.SUCCEEDED:
        return SUCCEEDED
    if job.failure:
        return f"{FAILED}: {note(job.failure)}"
    return "the job was suspended" if job.suspended else ""


def sight(view: JobView, rules: Rules | None = None) -> Sighting:
    """Returns the sighting of a job that the cluster shows. A rank that lost its holder is no fault here: the job's workflow
    compares the holders with those that it knows.

    Args:
        rules: rules of detection; by default the ready-made set `plain`.
    """
    rules = rules or plain()
    if view.job is None:
        return Sighting()
    count = view.job.spec.pods
    pods = ranked(view.pods)
    holding = [one for one in pods if one.holds and one.rank is not None and one.rank < count]
    with_rank = [one for one in pods if one.rank is not None]
    own = [one for one in with_rank if not one.backup and (one.lives or one.failed)]
    backups = [one for one in with_rank if one.backup and one.lives]
    living = [one for one in with_rank if one.lives and one.holds and (one.rank or 0) < count]
    own_words = filters(view.job.metadata.annotations)
    found = [(node, one) for node in _by_name(view.nodes) for one in own_words.applied(of_node(node, rules))]
    of_pods = [(one, finding) for one in _in_order(living) for finding in own_words.applied(of_pod(one.pod, rules))]
    held = held_by_node(view.job, holding)
    generation = _commonest(_generation(one) for one in holding)
    return Sighting(
        holders=_holders(holding, count),
        generation=generation,
        manager=_manager(view.pods),
        faults=(
            *_lost_nodes(view.job, view.nodes, own),
            *_of_backups(_lost_nodes(view.job, view.nodes, backups), backups),
            *_broken(view.job, held, found, own),
            *_of_backups(_broken(view.job, held, found, backups), backups),
            *_failed(view.job, with_rank),
            *_broken_pods(view.job, of_pods),
            *_processes(view.job, held, found, of_pods, living),
            *_sub_healths(view.job, held, found, of_pods, living),
        ),
        problems=problems(pods, count),
        standbys=standbys(view.pods, view.nodes, generation, rules),
        unbelieved=_unbelieved(view.nodes, rules),
    )


def matters(node: Node, rules: Rules | None = None) -> bool:
    """Returns whether something is wrong with the node, by these rules or the ready-made set `plain`. Sightings do not contain
    other nodes."""
    return is_lost(node) or bool(of_node(node, rules or plain()))


def _unbelieved(nodes: Iterable[Node], rules: Rules) -> tuple[str, ...]:
    if not rules.unbelieved:
        return ()
    found = {one.named.name for node in nodes for one in said_of(node, rules)} & rules.unbelieved
    return tuple(sorted(found)[:MOST_UNBELIEVED])


def gone(name: str, version: int = 0) -> Node:
    """Returns a node that is not ready, in place of one whose object was deleted. Its pods seem to run until the cluster ends
    them a minute later."""
    words = Condition(type=READY, status="Unknown", reason="NodeGone", message=f"node {name} was deleted")
    metadata = ObjectMeta(name=name, uid=name, resource_version=version)
    return Node(metadata=metadata, status=NodeStatus(accelerators=0, conditions=(words,)))


def is_lost(node: Node) -> bool:
    return _not_ready(node) is not None


def _not_ready(node: Node) -> Condition | None:
    """Returns the condition `Ready` if its status is False or Unknown. None: the node is ready, or has no such condition."""
    condition = condition_of(node.status.conditions, READY)
    return condition if condition and condition.status != "True" else None


# ---- holders of ranks


def _holders(holding: Sequence[RankedPod], count: int) -> tuple[str, ...]:
    holders = [""] * count
    for one in holding:
        assert one.rank is not None
        holders[one.rank] = UNKNOWN_HOLDER if holders[one.rank] else one.pod.metadata.uid[:HOLDER_LENGTH]
    return tuple(holders)


def _generation(one: RankedPod) -> str:
    return one.pod.metadata.labels.get(GENERATION, "0")


def _commonest(generations: Iterable[str]) -> str:
    """Returns the most common generation. If two are equally common it is the later one."""
    counts = Counter(generations)
    return max(counts, key=lambda generation: (counts[generation], len(generation), generation), default="")


def _manager(pods: Iterable[Pod]) -> str:
    """Returns the process of the manager that started last, as `{pod uid}/{start time}`. Empty: no manager runs."""
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


def standbys(pods: Iterable[Pod], nodes: Iterable[Node], generation: str, rules: Rules) -> tuple[Standby, ...]:
    """Returns the standbys that are not being deleted, by name.

    Args:
        generation: generation of the pods that hold ranks; empty: unknown.
    """
    wrong = {node.metadata.name: node for node in nodes if matters(node, rules)}
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
    return "all pods of the job have started again" if is_older else ""


# ---- pods


def _failed(job: JobObject, pods: Iterable[RankedPod]) -> list[Fault]:
    """Returns one fault for all pods of a generation with the same exit code, and one for each node that has refused pods."""
    groups: dict[tuple[bool, str, str, str], list[RankedPod]] = {}
    for one in pods:
        if one.failed:
            status = one.pod.status
            code = "" if status.exit_code is None else f"exit {status.exit_code}"
            refused = refusals.is_refusal(status)
            key = one.backup, _generation(one), status.reason if refused else code, one.pod.spec.node_name if refused else ""
            groups.setdefault(key, []).append(one)
    found = [(key, _in_order(groups[key])) for key in sorted(groups)]
    faults = [_failure(job, code, node, group) for (_, _, code, node), group in found[:MOST_FAULTS]]
    return _with_the_rest(job, faults, [group for _, group in found[MOST_FAULTS:]], "exit codes")


def _failure(job: JobObject, code: str, refusing: str, pods: Sequence[RankedPod]) -> Fault:
    """Returns the fault of pods that failed. `refusing` is the name of the node that has refused them; empty: they have run."""
    first = pods[0]
    here = {one.pod.spec.node_name for one in pods}
    status = first.pod.status
    words = cut(status.message or status.reason or code, LONGEST_MESSAGE)
    pod_ranks = _pod_ranks(job, pods)
    return Fault(
        id=f"{'backup-failed' if first.backup else 'failed'}/{_generation(first)}/{code}{f'/{refusing}' if refusing else ''}",
        kind=FaultKind.POD,
        pod_ranks=pod_ranks,
        ranks=job.spec.layout.ranks_of_all(pod_ranks),
        node=first.pod.spec.node_name if len(here) == 1 else "",
        pod=first.pod.metadata.name,
        pod_uids=tuple(one.pod.metadata.uid for one in pods[:NAMED_PODS]),
        generation=_generation(first),
        backup=first.backup,
        code=code,
        message=_failed_words(pods, words),
        source=WATCHER,
    )


def _failed_words(pods: Sequence[RankedPod], words: str) -> str:
    """Returns the message of a fault of failed pods. The names come last if there are several pods, since a long
    message is cut."""
    names = ", ".join(one.pod.metadata.name for one in pods[:NAMED_PODS])
    more = f" and {len(pods) - NAMED_PODS} more" if len(pods) > NAMED_PODS else ""
    return f"pod {names} failed: {words}" if len(pods) == 1 else f"{len(pods)} pods failed: {words} ({names}{more})"


# ---- lost nodes


def _lost_nodes(job: JobObject, nodes: Iterable[Node], pods: Iterable[RankedPod]) -> list[Fault]:
    """Returns a fault for each node that is not ready, with all pods on it. If all nodes are ready, as usual, no pod is read."""
    wrong = {node.metadata.name: (node, condition) for node in nodes if (condition := _not_ready(node))}
    grouped = _grouped(pods) if wrong else {}
    here = [(*wrong[name], grouped[name]) for name in sorted(wrong) if name in grouped]
    faults = []
    for node, condition, group in here[:MOST_FAULTS]:
        pod_ranks = _pod_ranks(job, group)
        fault = Fault(
            id=f"{node.metadata.name}/lost",  # the same id whether the node is not ready, unknown or deleted
            kind=FaultKind.NODE,
            pod_ranks=pod_ranks,
            ranks=job.spec.layout.ranks_of_all(pod_ranks),
            node=node.metadata.name,
            code=condition.reason[:LONGEST_CODE],
            pod_uids=(group[0].pod.metadata.uid,) if len(group) == 1 else (),
            message=cut(condition.message or f"node {node.metadata.name} is lost", LONGEST_MESSAGE),
            source=WATCHER,
        )
        faults.append(fault)
    return _with_the_rest(job, faults, [group for _, _, group in here[MOST_FAULTS:]], "nodes")


def _of_backups(faults: Iterable[Fault], pods: Iterable[RankedPod]) -> list[Fault]:
    """Returns the same faults as faults of backup pods, which cannot fail by themselves for minutes."""
    living = list(pods)
    return [
        fault.model_copy(update={"id": f"backup/{fault.id}", "backup": True, "pod_uids": _uids_on(fault.node, living)})
        for fault in faults
    ]


def _uids_on(node: str, pods: Iterable[RankedPod]) -> tuple[str, ...]:
    return tuple(one.pod.metadata.uid for one in _in_order(pods) if one.pod.spec.node_name == node)[:NAMED_PODS]


# ---- faults by rules

Found = Sequence[tuple[Node, Finding]]
OfPods = Sequence[tuple[RankedPod, Finding]]


def _broken(job: JobObject, held: Held, found: Found, pods: Sequence[RankedPod]) -> list[Fault]:
    """Returns the faults of nodes, or of their devices, that these pods have to leave."""
    hit = list(_struck(held, found, (Then.FAULT,), pods))
    faults = [_of_node(job, node, finding, at, FaultKind.NODE) for node, finding, at in hit[:MOST_FAULTS]]
    return _with_the_rest(job, faults, [at.pods for *_, at in hit[MOST_FAULTS:]], "nodes", MOST_BYTES_OF_RULES)


def _broken_pods(job: JobObject, of_pods: OfPods) -> list[Fault]:
    hit = [(one, finding) for one, finding in of_pods if finding.then is Then.FAULT]
    faults = [_of_one_pod(job, one, finding, FaultKind.POD) for one, finding in hit[:MOST_FAULTS]]
    return _with_the_rest(job, faults, [[one] for one, _ in hit[MOST_FAULTS:]], "pods", MOST_BYTES_OF_RULES)


def _processes(job: JobObject, held: Held, found: Found, of_pods: OfPods, pods: Sequence[RankedPod]) -> list[Fault]:
    """Returns the faults that a restart in place or a repeated step may repair."""
    hit = [
        (_of_node(job, node, finding, at, FaultKind.PROCESS), at.pods)
        for node, finding, at in _struck(held, found, tuple(TYPES), pods)
    ]
    own = [(one, finding) for one, finding in of_pods if finding.then in TYPES]
    hit += [(_of_one_pod(job, one, finding, FaultKind.PROCESS), [one]) for one, finding in own]
    faults = [fault for fault, _ in hit[:MOST_FAULTS]]
    return _with_the_rest(job, faults, [group for _, group in hit[MOST_FAULTS:]], "devices", MOST_BYTES_OF_RULES)


def _sub_healths(job: JobObject, held: Held, found: Found, of_pods: OfPods, pods: Sequence[RankedPod]) -> list[Fault]:
    """Returns one fault for each pod of a rank on a sub-healthy node. Each pod is moved by itself, so that a later pod is a new
    fault."""
    sick = [
        (_of_node(job, node, finding, Struck([one]), FaultKind.SUB_HEALTH), one)
        for node, finding, at in _struck(held, found, DEGRADED, pods)
        for one in _once_a_rank(at.pods)
    ]
    own = [(one, finding) for one, finding in of_pods if finding.then in DEGRADED]
    sick += [(_of_one_pod(job, one, finding, FaultKind.SUB_HEALTH), one) for one, finding in own]
    faults = []
    for fault, one in sick[:MOST_FAULTS]:
        pod = {"pod": one.pod.metadata.name, "generation": _generation(one)}
        faults.append(fault.model_copy(update={**pod, "id": f"{fault.id}/{_generation(one)}/{one.rank}"}))
    return _with_the_rest(job, faults, [[one] for _, one in sick[MOST_FAULTS:]], "pods")


def _struck(held: Held, found: Found, thens: Sequence[Then], pods: Sequence[RankedPod]) -> Iterator[tuple[Node, Finding, Struck]]:
    """Yields each finding that affects these pods, with the affected pods and ranks, without duplicates."""
    meant = [(node, finding) for node, finding in found if finding.then in thens]
    grouped, told = _grouped(pods) if meant else {}, set[str]()
    for node, finding in meant:
        at = struck(held, node, finding.devices, grouped.get(node.metadata.name, ()))
        if at.pods and (name := _id(node.metadata.uid, finding)) not in told:
            told.add(name)
            yield node, finding, at


def _id(where: str, finding: Finding) -> str:
    """Returns the id of a fault. A state of a node, device or pod keeps its id as long as it lasts: agents change reason and time
    of conditions that never ended. A failure of processes in a report gets another id at each new time, unless its rule has a
    `clear` time."""
    rule, fact = finding.named.rule, finding.fact
    devices = _short(",".join(shown(finding.devices)))
    if rule.then not in TYPES:
        return f"{where}/{finding.named.name}{devices}"
    since = "" if rule.clear or fact.is_condition or not fact.since else fact.since.isoformat()
    return f"{where}/{finding.named.name}/{fact.code}/{since}{devices}"


def _short(devices: str) -> str:
    """Returns the devices as a part of an id. Long texts are hashed, so that texts with the same beginning differ."""
    if len(devices) >= LONGEST_CODE:
        devices = hashlib.sha256(devices.encode()).hexdigest()[:32]
    return f"/{devices}" if devices else ""


def _of_node(job: JobObject, node: Node, finding: Finding, at: Struck, kind: FaultKind) -> Fault:
    pod_ranks = _pod_ranks(job, at.pods)
    ranks = at.ranks if kind is FaultKind.PROCESS and at.ranks else job.spec.layout.ranks_of_all(pod_ranks)
    fault = _decided(finding, _id(node.metadata.uid, finding), kind, ranks)
    uids = (at.pods[0].pod.metadata.uid,) if len(at.pods) == 1 else ()
    return fault.model_copy(update={"pod_ranks": pod_ranks, "node": node.metadata.name, "pod_uids": uids})


def _of_one_pod(job: JobObject, one: RankedPod, finding: Finding, kind: FaultKind) -> Fault:
    """Returns the fault of one pod, which is not about its node."""
    metadata, pod_ranks = one.pod.metadata, _pod_ranks(job, [one])
    fault = _decided(finding, _id(metadata.uid, finding), kind, job.spec.layout.ranks_of_all(pod_ranks))
    pod = {"pod": metadata.name, "pod_uids": (metadata.uid,), "generation": _generation(one)}
    return fault.model_copy(update={"pod_ranks": pod_ranks, **pod})


def _decided(finding: Finding, fault_id: str, kind: FaultKind, ranks: tuple[int, ...]) -> Fault:
    rule, fact = finding.named.rule, finding.fact
    details: tuple[FaultyRanks, ...] = ()
    if kind is FaultKind.PROCESS:
        device = ",".join(shown(finding.devices[:NAMED_PODS]))
        details = (FaultyRanks(ranks=ranks, type=TYPES[finding.then], device=device, code=fact.code),)
    return Fault(
        id=fault_id,
        kind=kind,
        ranks=ranks,
        details=details,
        code=fact.code,
        message=cut(fact.message or fact.saw, LONGEST_MESSAGE),
        source=WATCHER,
        decided=Decided(
            rule=finding.named.name,
            saw=fact.saw,
            since=fact.since,
            settle=max(rule.settle.total_seconds(), finding.given),
            clear=rule.clear.total_seconds(),
            maintenance=finding.then is Then.MAINTENANCE,
        ),
    )


def _by_name(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.metadata.name)


def _grouped(pods: Iterable[RankedPod]) -> dict[str, list[RankedPod]]:
    """Returns the pods by node, in their order of ranks."""
    here: dict[str, list[RankedPod]] = {}
    for one in _in_order(pods):
        here.setdefault(one.pod.spec.node_name, []).append(one)
    return here


# ---- ranks, and long lists


def _in_order(pods: Iterable[RankedPod]) -> list[RankedPod]:
    """Returns the pods in an order that does not depend on the cluster."""
    return sorted(pods, key=lambda one: (one.rank, _generation(one), one.pod.metadata.name, one.pod.metadata.uid))


def _once_a_rank(pods: Iterable[RankedPod]) -> list[RankedPod]:
    """Returns one pod for each rank and generation. Two pods of one rank are reported as a problem."""
    return list({(one.rank, _generation(one)): one for one in pods}.values())


def _pod_ranks(job: JobObject, pods: Iterable[RankedPod]) -> tuple[int, ...]:
    """Returns the pod ranks of the pods. Ranks that the job does not have are left out, since a fault with one
    would be rejected."""
    return tuple(sorted({one.rank for one in pods if one.rank is not None and one.rank < job.spec.pods}))


def _with_the_rest(
    job: JobObject, faults: list[Fault], rest: Sequence[Sequence[RankedPod]], what: str, most: int = MOST_BYTES
) -> list[Fault]:
    """Returns the faults that fit. The last one has the pod ranks of all others, and their number in its message."""
    named = _fitting(faults, most)
    if named == len(faults) and not rest:
        return faults
    last, left_out = faults[named - 1], faults[named:]
    of_the_left_out = (rank for fault in left_out for rank in fault.pod_ranks)
    of_the_rest = _pod_ranks(job, (one for group in rest for one in group))
    pod_ranks = tuple(sorted({*last.pod_ranks, *of_the_left_out, *of_the_rest}))
    message = f"{cut(last.message, LONGEST_MESSAGE)} (and {len(left_out) + len(rest)} more {what})"
    told = last.model_copy(update={"pod_ranks": pod_ranks, "ranks": job.spec.layout.ranks_of_all(pod_ranks), "message": message})
    return [*faults[: named - 1], told]


def _fitting(faults: Sequence[Fault], left: int) -> int:
    """Returns how many of the faults, from the first, fit into `left` bytes. It is at least 1."""
    for number, fault in enumerate(faults):
        left -= len(fault.model_dump_json())
        if left < 0:
            return max(number, 1)
    return len(faults)
