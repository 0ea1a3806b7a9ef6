"""What the watcher tells a job's workflow: from what the cluster shows and what was told already. Pure.

Called by `workers/watcher.py`. Level-triggered: every answer follows from the world as it is, so that lost watches and restarts
lose nothing.
"""

from datetime import datetime
from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.cluster import LOOSE_PODS, Condition, JobObject, JobPhase, JobView, Node, Pod, PodPhase, PodRole, condition_of
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.keys import (
    CAPABILITIES,
    DOWNGRADED,
    FRAMEWORK,
    GENERATION,
    POD_TYPE,
    PROCESS_RECOVER_ENABLE,
    RANKS_PER_POD,
    SUB_HEALTHY_STRATEGY,
)
from rekindle.policy.ranks import problems, rank_of

SOURCE = "watcher"


class TellKind(StrEnum):
    REGISTER = "register"
    FAULT = "fault"
    CLEARED = "cleared"
    PROBLEMS = "problems"
    END = "end"


class Tell(Value):
    """One update of a job's workflow."""

    kind: TellKind
    fault: Fault | None = None
    episode: str = ""
    """Of a sub-health that is over."""

    reason: str = ""
    """Why the job ended, or what is said of its problems in a log."""

    problems: tuple[str, ...] = ()
    """All that are known, at a registration and whenever they change."""

    change: int = 0
    """`Told.changes` at that time."""

    @property
    def update_id(self) -> str:
        """The same for the same news, so that a repeated one is taken once. Problems that come again are other news, also while
        nobody knows whether the last ones arrived."""
        if self.fault:
            return self.fault.episode
        number = str(self.change) if self.kind in (TellKind.REGISTER, TellKind.PROBLEMS) else ""
        return "/".join(part for part in (self.kind, self.episode, number) if part)


class SeenPod(Value):
    """A pod of a rank, as it was seen last."""

    uid: str
    name: str
    rank: int
    node: str
    backup: bool
    leaving: bool
    """Told to end, or over: its absence is no surprise."""

    generation: str = ""
    born: datetime | None = None


class OpenEpisode(Value):
    """A sub-health that was told and not cleared."""

    episode: str
    node: str
    illness: str


class Words(Value):
    """What an owner may say of a job while it runs."""

    sub_health: str = ""
    others: tuple[str, ...] = ()


class Told(Value):
    """What one job's workflow was told."""

    known: bool = False
    """The job has a workflow, which must learn of its end; it may have been registered by an earlier watcher."""

    registered: bool = False
    """By this watcher, as it is: a new one registers every job again."""

    observed: bool = False
    """The job is only observed, as was seen last."""

    words: Words | None = None
    """As was seen last; None: never."""

    stale: bool = False
    """The job says something else than what it was registered with, which holds until it is registered again."""

    problems: tuple[str, ...] = ()
    """As was seen last."""

    changes: int = 0
    """How often these three changed."""

    told_change: int = 0
    """Up to which of these changes its workflow knows the problems."""

    episodes: tuple[str, ...] = ()
    open: tuple[OpenEpisode, ...] = ()
    pods: tuple[SeenPod, ...] = ()

    def kept(self) -> "Told":
        """What a new watcher must know. The rest is told again; the workflow takes an episode once."""
        return Told(known=self.known, open=self.open)


def observe(told: Told, view: JobView) -> Told:
    """Remembers the pods, so that one that vanishes is missed; a rank that somebody else holds misses nobody. And what the job
    says, its problems, and whether it is only observed."""
    here = {pod.metadata.uid for pod in view.pods}
    held = {seen.rank for seen in map(_seen, view.pods) if seen and not seen.leaving and not seen.backup}
    lost = [seen for seen in told.pods if seen.uid not in here and not seen.leaving and seen.rank not in held]
    pods = (*lost, *(seen for seen in map(_seen, view.pods) if seen))
    return _changed(told.model_copy(update={"pods": pods}), view)


def _changed(told: Told, view: JobView) -> Told:
    """A job that says something else, or that is only observed from now on, or is not any more, is registered again. The latter
    before anything else is told of it."""
    if view.job is None:
        return told
    found, observed, words = problems(view), view.job.observe, _words(view.job, told.words)
    last = told.words or words
    if (found, observed, words) == (told.problems, told.observed, last):
        return told.model_copy(update={"words": words})
    only_words = (found, observed) == (told.problems, told.observed)
    update = {"problems": found, "observed": observed, "words": words, "changes": told.changes + 1}
    again = {"registered": told.registered and observed == told.observed, "stale": told.stale or words != last}
    known = {"told_change": told.told_change + 1} if only_words and told.told_change == told.changes else {}
    return told.model_copy(update={**update, **again, **known})


def _words(job: JobObject, last: Words | None) -> Words:
    """While a downgrade stands in the label of the sub-health policy, its owner's word is the one before. Pods that nobody
    controls speak for their job by turns: what they say counts at its registration only."""
    before = last or Words()
    if job.kind == LOOSE_PODS:
        return before
    labels, annotations, spec = job.metadata.labels, job.metadata.annotations, job.spec
    sub_health = before.sub_health if DOWNGRADED in annotations else labels.get(SUB_HEALTHY_STRATEGY, "")
    written = [labels.get(key, "") for key in (PROCESS_RECOVER_ENABLE, FRAMEWORK)]
    written += [annotations.get(key, "") for key in (CAPABILITIES, RANKS_PER_POD)]
    limits = [f"{name}={limit}" for name, limit in sorted(spec.limits.items())]
    return Words(sub_health=sub_health, others=(*written, spec.training_side, *limits))


def due(told: Told, view: JobView, now: datetime) -> tuple[Tell, ...]:
    """What the workflow does not know yet; the first is the most urgent."""
    if reason := _end(view.job):
        return (Tell(kind=TellKind.END, reason=reason),) if told.known else ()
    assert view.job is not None
    again = [] if told.registered and not told.stale else [_register(told, view)]
    if not told.registered:
        return tuple(again)
    faults = (*_lost_nodes(view, now), *_failed(view, now), *_vanished(told, view, now), *_sub_healths(view, now))
    news = [Tell(kind=TellKind.FAULT, fault=fault) for fault in faults if fault.episode not in told.episodes]
    illnesses = {_illness(node, condition) for node, condition in _sick(view)}
    over = [Tell(kind=TellKind.CLEARED, episode=one.episode) for one in told.open if one.illness not in illnesses]
    return (*again, *news, *over, *_problems_due(told))


def _register(told: Told, view: JobView) -> Tell:
    return Tell(kind=TellKind.REGISTER, problems=problems(view), change=told.changes)


def _problems_due(told: Told) -> list[Tell]:
    if told.changes == told.told_change:
        return []
    words = "; ".join(told.problems[:1]) or "none any more"
    return [Tell(kind=TellKind.PROBLEMS, problems=told.problems, change=told.changes, reason=words)]


def after(told: Told, tell: Tell, view: JobView) -> Told:
    """What was told, once the workflow took it."""
    if tell.kind is TellKind.END:
        return Told()
    if tell.kind is TellKind.REGISTER:
        still_so = tell.change == told.changes
        found = tell.problems if still_so else told.problems
        update = {"known": True, "registered": still_so, "stale": False, "problems": found, "told_change": tell.change}
        return told.model_copy(update=update)
    if tell.kind is TellKind.PROBLEMS:
        return told.model_copy(update={"told_change": tell.change})
    if tell.kind is TellKind.CLEARED:
        return told.model_copy(update={"open": tuple(one for one in told.open if one.episode != tell.episode)})
    assert tell.fault is not None
    fault = tell.fault
    opened = [one for one in told.open if one.episode != fault.episode]
    if fault.kind is FaultKind.SUB_HEALTH:
        opened.append(OpenEpisode(episode=fault.episode, node=fault.node, illness=illness_of(fault.episode)))
    pods = tuple(seen for seen in told.pods if not (seen.uid == fault.pod_uid and _absent(seen, view)))
    return told.model_copy(update={"episodes": (*told.episodes, fault.episode), "open": tuple(opened), "pods": pods})


def declined(told: Told) -> Told:
    """What was told, after a registration that means nothing: a workflow that knows the job goes by what it said before. Not if
    it is only observed now, which the workflow may not know."""
    return told.model_copy(update={"registered": told.known and not told.observed, "stale": True})


def _end(job: JobObject | None) -> str:
    """Why the job is over; empty: it lives."""
    if job is None or job.metadata.deletion_timestamp:
        return "the job was deleted"
    return "the job succeeded" if job.status.phase is JobPhase.SUCCEEDED else ""


# ---- pods


def _seen(pod: Pod) -> SeenPod | None:
    """None for pods without a rank: managers."""
    rank = rank_of(pod)
    if rank is None:
        return None
    over = pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    return SeenPod(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        rank=rank,
        node=pod.spec.node_name,
        backup=pod.metadata.annotations.get(POD_TYPE) == PodRole.BACKUP,
        leaving=over or pod.metadata.deletion_timestamp is not None,
        generation=pod.metadata.labels.get(GENERATION, ""),
        born=pod.metadata.creation_timestamp,
    )


def _absent(seen: SeenPod, view: JobView) -> bool:
    return seen.uid not in {pod.metadata.uid for pod in view.pods}


def _failed(view: JobView, now: datetime) -> list[Fault]:
    """Pods whose processes failed. One that is being deleted was told to end."""
    faults = []
    for pod in view.pods:
        seen = _seen(pod)
        if seen and pod.status.phase is PodPhase.FAILED and pod.metadata.deletion_timestamp is None:
            code = "" if pod.status.exit_code is None else f"exit {pod.status.exit_code}"
            words = f"pod {seen.name} failed: {pod.status.message or pod.status.reason or code}"
            faults.append(_pod_fault(view, seen, "failed", words, now).model_copy(update={"code": code}))
    return faults


def _vanished(told: Told, view: JobView, now: datetime) -> list[Fault]:
    """Pods that are gone, and nobody asked for it as far as was seen."""
    here = {pod.metadata.uid for pod in view.pods}
    lost = [seen for seen in told.pods if seen.uid not in here and not seen.leaving]
    return [_pod_fault(view, seen, "vanished", f"pod {seen.name} vanished", now) for seen in lost]


def _pod_fault(view: JobView, seen: SeenPod, what: str, message: str, seen_at: datetime) -> Fault:
    return Fault(
        episode=f"{seen.uid}/{what}",
        kind=FaultKind.POD,
        pod_ranks=tuple(_of_the_job(view, [seen.rank])),
        ranks=_ranks(view, [seen.rank]),
        node=seen.node,
        pod=seen.name,
        pod_uid=seen.uid,
        generation=seen.generation,
        pod_born=seen.born,
        backup=seen.backup,
        message=message,
        seen_at=seen_at,
        source=SOURCE,
    )


def _ranks(view: JobView, pod_ranks: list[int]) -> tuple[int, ...]:
    assert view.job is not None
    each = view.job.spec.ranks_per_pod
    return tuple(rank for pod_rank in _of_the_job(view, pod_ranks) for rank in range(pod_rank * each, (pod_rank + 1) * each))


def _of_the_job(view: JobView, pod_ranks: list[int]) -> list[int]:
    """A fault that names a rank outside of the job would be refused; the rank is a problem, the fault is one all the same."""
    assert view.job is not None
    return [rank for rank in pod_ranks if rank < view.job.spec.pods]


# ---- nodes


def _sick(view: JobView) -> list[tuple[Node, Condition]]:
    conditions = [(node, condition_of(node.status.conditions, "SubHealthy")) for node in view.nodes]
    return [(node, condition) for node, condition in conditions if condition and condition.status == "True"]


def _illness(node: Node, condition: Condition) -> str:
    """Names what one condition of one node was from its transition to the next."""
    since = condition.last_transition_time
    return f"{node.metadata.uid}/{condition.reason}/{since.isoformat() if since else ''}"


def illness_of(episode: str) -> str:
    """An episode is an illness, met by one generation of the job's pods: pods that were started anew meet it anew."""
    return episode.rpartition("@")[0]


def _sub_healths(view: JobView, now: datetime) -> list[Fault]:
    """One fault for each sick node that live pods of ranks are on; a backup pod is not training yet."""
    faults = []
    for node, condition in _sick(view):
        here = [pod for pod in _on(view, node) if _lives(pod)]
        for generation in sorted({_generation(pod) for pod in here}):
            fault = _node_fault(view, node, condition, [pod for pod in here if _generation(pod) == generation], now)
            episode = f"{fault.episode}@{generation}"
            if fault.pod_ranks:
                faults.append(fault.model_copy(update={"kind": FaultKind.SUB_HEALTH, "episode": episode}))
    return faults


def _lost_nodes(view: JobView, now: datetime) -> list[Fault]:
    """Nodes that are not ready any more, with the pods that were on them, dead or not."""
    faults = []
    for node in view.nodes:
        condition = condition_of(node.status.conditions, "Ready")
        here = [pod for pod in _on(view, node) if _lives(pod) or _died(pod)]
        if condition and condition.status != "True" and here:
            fault = _node_fault(view, node, condition, here, now)
            faults.append(fault.model_copy(update={"message": condition.message or f"node {node.metadata.name} is lost"}))
    return faults


def _on(view: JobView, node: Node) -> list[Pod]:
    return [pod for pod in view.pods if pod.spec.node_name == node.metadata.name]


def _lives(pod: Pod) -> bool:
    """It holds a rank, and nothing ends it."""
    seen = _seen(pod)
    return seen is not None and not seen.backup and not seen.leaving


def _died(pod: Pod) -> bool:
    seen = _seen(pod)
    failed = pod.status.phase is PodPhase.FAILED and pod.metadata.deletion_timestamp is None
    return failed and seen is not None and not seen.backup


def _generation(pod: Pod) -> str:
    return pod.metadata.labels.get(GENERATION, "0")


def _node_fault(view: JobView, node: Node, condition: Condition, pods: list[Pod], now: datetime) -> Fault:
    ranks = _of_the_job(view, sorted({seen.rank for seen in map(_seen, pods) if seen}))
    return Fault(
        episode=_illness(node, condition),
        kind=FaultKind.NODE,
        pod_ranks=tuple(ranks),
        ranks=_ranks(view, ranks),
        node=node.metadata.name,
        code=condition.reason,
        message=condition.message,
        seen_at=now,
        source=SOURCE,
    )
