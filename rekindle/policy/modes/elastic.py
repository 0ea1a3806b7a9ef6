"""Decides about the size of a job: which pods may leave, what is seen of pods that are missing, and when they are to come back.
Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from rekindle.model.bounds import few, numbered
from rekindle.model.elastic import Resized, Small
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER, Fault, FaultKind, Sighting
from rekindle.model.incident import Incident, RecoveryContext
from rekindle.model.job import Job
from rekindle.model.keys import ELASTIC
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Standing
from rekindle.model.verdict import Verdict
from rekindle.policy.training_sides.table import side_of

NOT_ELASTIC = f"its owner allows no other size than that with which it was started (annotation {ELASTIC})"

MOST_NODES = 10
"""Maximum number of nodes that are remembered of missing replicas, for people."""

MOST_PLACED = 16
"""Maximum number of missing pod ranks that are remembered for a node. One with more is named until all replicas are back."""

MOST_HOLDERS = 256
"""Maximum number of missing replicas of which the last holders are remembered. For any other one, a pod counts as another one
when the rank was seen without a pod."""

MOST_THERE = 64
"""Maximum number of missing replicas whose next pods are remembered."""

MOST_HURRIED = 3
"""Number of attempts to grow that pods of another component begin at once, for one size. Source: ours."""


def missing_of(small: Small | None) -> tuple[int, ...]:
    """Returns the pod ranks that are missing."""
    return small.missing if small else ()


def present(job: Job, small: Small | None) -> int:
    """Returns the number of replicas with which the job trains."""
    return job.layout.replicas_without(missing_of(small))


def too_few(job: Job, small: Small | None, leaving: Collection[int]) -> str:
    """Returns why these pods may not leave. Empty: enough replicas would be left."""
    if job.elastic is None:
        return NOT_ELASTIC
    left, all_of_them = job.layout.replicas_without((*missing_of(small), *leaving)), job.layout.replicas
    if left >= job.elastic.least:
        return ""
    return f"{left} of {all_of_them} replicas would be left, its owner wants {job.elastic.least} or more (annotation {ELASTIC})"


def patience_for_spare(job: Job, small: Small | None, leaving: Collection[int], limit: timedelta) -> timedelta:
    """Returns how long faulty pods wait for a spare node while training stands.

    Args:
        limit: time for a job that cannot go on without them.
    """
    if job.elastic is None or too_few(job, small, leaving):
        return limit
    return min(limit, job.elastic.wait)


def takes_only_standbys(job: Job, small: Small | None, leaving: Collection[int]) -> bool:
    """Returns whether the job goes on without faulty pods rather than wait for new ones."""
    return job.elastic is not None and not job.elastic.wait and not too_few(job, small, leaving)


def stands_by(state: JobState) -> bool:
    """Returns whether a standby runs."""
    return any(one.runs and not one.wrong for one in state.standbys)


def patience_for_leaving(context: RecoveryContext, pod_rank: int) -> timedelta:
    """Returns how long a pod that trains waits for a spare node. One that has to leave a node which goes away may leave the job
    instead, so that its owner's wait holds, unless that was tried."""
    limit, faults = context.job.limits.backup_scheduled, context.situation.faults
    leaves = any(pod_rank in fault.pod_ranks and fault.is_maintenance for fault in faults)
    may_leave = leaves and Mode.SCALING not in context.situation.tried
    return patience_for_spare(context.job, context.small, (pod_rank,), limit) if may_leave else limit


def words(state: JobState, since: str) -> str:
    """Describes the size of a job: `3 of 4 replicas, since 14:02, node-2 lost, waits for one node`. Empty: it has all replicas.

    Args:
        since: time since which replicas are missing, as people read it.
    """
    job, small = state.job, state.small
    if small is None:
        return ""
    lost = f"{few(small.nodes)} lost" if small.nodes else ""
    wanted = (size_by_itself(job, small) - present(job, small)) * job.layout.pods_per_replica
    waits = f"waits for {'one node' if wanted == 1 else f'{wanted} nodes'}" if wanted > 0 else "as ordered by hand"
    waits += ", and until a storm is over" if wanted > 0 and state.storm else ""
    tried = f"last attempt: {small.last_try}" if small.last_try and wanted > 0 else ""
    parts = (f"{present(job, small)} of {job.layout.replicas} replicas", f"since {since}", lost, waits, tried)
    return ", ".join(filter(None, parts))


# ---- growth

MOST_PAUSES = 5
"""Longest pause between two attempts to grow, as a multiple of the first one."""


def may_grow(state: JobState, now: datetime) -> bool:
    """Returns whether an attempt to grow is due. A size that a person has set stays, and a storm is waited for."""
    at = grows_at(state)
    return at is not None and at <= now and not (state.job.observe or state.storm)


def grows_at(state: JobState) -> datetime | None:
    """Returns when the next attempt to grow is due. None: the job has all replicas, or does not grow by itself."""
    small = state.small
    if small is None or not grows(state.job, small):
        return None
    return small.since if small.try_at is None or (stands_by(state) and not small.tries) else small.try_at


def size_by_itself(job: Job, small: Small) -> int:
    """Returns the size to which a job grows by itself: the one that a person has set, or that with which it was started."""
    if not small.by_hand:
        return job.layout.replicas
    return present(job, small) if small.size is None else min(small.size, job.layout.replicas)


def grows(job: Job, small: Small) -> bool:
    """Returns whether a small job is to grow by itself."""
    return present(job, small) < size_by_itself(job, small)


def next_size(job: Job, small: Small, *, at_once: bool) -> int:
    """Returns the size to which a small job grows next.

    Args:
        at_once: all missing replicas come back together.
    """
    return size_by_itself(job, small) if at_once else present(job, small) + 1


def tried(state: JobState, verdict: Verdict, now: datetime) -> JobState:
    """Returns the state after an attempt to grow that came to no end. The next one comes later each time, unless a fault came
    first."""
    small = state.small
    if small is None or not grows(state.job, small) or (verdict.resized and verdict.resized.came):
        return state
    tries = small.tries + (not verdict.was_interrupted)
    pause = state.job.limits.grow_again * min(2 ** min(max(0, tries - 1), MOST_PAUSES), MOST_PAUSES)
    after = small.model_copy(update={"tries": tries, "try_at": now + pause, "last_try": verdict.reason})
    return state.with_(small=after)


def repeated(history: Iterable[Incident], summary: str, last: Verdict) -> Incident | None:
    """Returns the last attempt to grow in the history if it came to no end, as this one. Only the latest is kept. None: there is
    none."""
    if last.mode is not Mode.SCALING or last.outcome is not Outcome.IGNORED:
        return None
    before = list(history)[-1:]
    same = (one for one in before if one.summary == summary and one.ladder[-1].mode is Mode.SCALING)
    return next((one for one in same if one.verdict is Outcome.IGNORED), None)


def come(small: Small, holders: Sequence[str]) -> tuple[int, ...]:
    """Returns the missing pod ranks that have another pod than the one that has left."""
    return tuple(rank for rank, uid in _held(small.missing, holders) if not _is_old(small, rank, uid))


def lingering(small: Small, holders: Sequence[str]) -> tuple[int, ...]:
    """Returns the missing pod ranks whose last pods are there still, alone or beside another one."""
    held = _held(small.lingering, holders)
    return tuple(rank for rank, uid in held if uid == UNKNOWN_HOLDER or _is_old(small, rank, uid))


def _held(ranks: Iterable[int], holders: Sequence[str]) -> list[tuple[int, str]]:
    return [(rank, holders[rank]) for rank in ranks if rank < len(holders) and holders[rank]]


def _is_old(small: Small, rank: int, holder: str) -> bool:
    """Returns whether the pod of a missing rank is the one that has left."""
    known = rank in small.old or holder == UNKNOWN_HOLDER
    return holder == small.old.get(rank) if known else rank in small.lingering


def to_sweep(state: JobState) -> dict[int, str]:
    """Returns the pods that have left and are there still, by pod rank, as `Sighting.holders`. Empty: there are none, or other
    components delete them."""
    small = state.small
    if small is None or side_of(state.job).controller_recreates:
        return {}
    return {rank: small.old[rank] for rank in small.lingering if rank in small.old}


def swept(state: JobState, ranks: Collection[int]) -> JobState:
    """Returns the state after the deletion of the last pods of these missing ranks."""
    if state.small is None:
        return state
    left = tuple(rank for rank in state.small.lingering if rank not in ranks)
    return state.with_(small=state.small.model_copy(update={"lingering": left}))


def pods_that_come(state: JobState, sighting: Sighting) -> JobState:
    """Returns the state with the pods that another component has created for missing replicas. With a further one the job may
    grow at once, unless such attempts have come to no end before."""
    small = state.small
    if small is None:
        return state
    there = come(small, sighting.holders)[:MOST_THERE]
    changes: dict[str, object] = {"there": there, "lingering": lingering(small, sighting.holders)}
    if set(there) - set(small.there) and small.hurried < MOST_HURRIED:
        changes |= {"try_at": None, "hurried": small.hurried + 1}
    return state.with_(small=small.model_copy(update=changes))


# ---- changes of the size


def resized(state: JobState, verdict: Verdict, now: datetime) -> JobState:
    """Returns the state after a mode. A restart of all pods brings all replicas back. The same verdict may be applied twice."""
    if verdict.restarted_at is not None:
        return state.with_(small=None)
    change = verdict.resized
    if change is None:
        return state
    before = state.small or Small(since=now, missing=())
    missing = tuple(sorted({*before.missing, *change.left} - set(change.came)))
    if missing == before.missing:
        return state
    if not missing:
        return state.with_(small=None)
    nodes, places = _named(_nodes_after(before, change, missing))
    try_at = now + state.job.limits.grow_again if change.left else None
    left = {rank: uid for rank, uid in _held(change.left, state.holders) if uid not in (UNKNOWN_HOLDER, EXPECTED_HOLDER)}
    small = Small(
        since=before.since,
        missing=missing,
        nodes=nodes,
        places=places,
        by_hand=change.by_hand or before.by_hand,
        size=state.job.layout.replicas_without(missing) if change.by_hand else before.size,
        attempt=change.attempt or before.attempt,
        old=dict([(rank, uid) for rank, uid in {**before.old, **left}.items() if rank in missing and uid][:MOST_HOLDERS]),
        lingering=tuple(sorted({*before.lingering, *change.left} & set(missing))),
        try_at=try_at,
    )
    return without_missing(state.with_(small=small))


def leave(pods: Collection[int], faults: Iterable[Fault], *, by_hand: bool = False, attempt: str = "") -> Resized:
    """Returns the change of the size by which these pods leave. Nodes are those that they leave because of these faults."""
    found: dict[str, set[int]] = {}
    for fault in faults:
        ranks = {*fault.pod_ranks} & {*pods}
        if fault.node and ranks and not fault.backup and fault.kind is not FaultKind.PROCESS:
            found.setdefault(fault.node, set()).update(ranks)
    nodes, places = _named({node: found[node] for node in [*found][:MOST_NODES]})
    return Resized(left=tuple(pods), nodes=nodes, places=places, by_hand=by_hand, attempt=attempt)


def _named(ranks: Mapping[str, Collection[int]]) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Returns nodes with the pod ranks that have left them. Those of very many are left out."""
    return tuple(ranks), tuple(tuple(sorted(of)) if len(of) <= MOST_PLACED else () for of in ranks.values())


def _nodes_after(before: Small, change: Resized, missing: Collection[int]) -> dict[str, Collection[int]]:
    """Returns the nodes that missing pods have left, each with their pod ranks. Empty ones: they are not known."""
    known = _places(before)
    for node, ranks in _places(change).items():
        is_known = bool(ranks) and bool(known.get(node, ranks))
        known[node] = {*known.get(node, ()), *ranks} if is_known else set()
    latest = [*known.items()][-MOST_NODES:]
    return {node: ranks & {*missing} for node, ranks in latest if not ranks or ranks & {*missing}}


def _places(of: Small | Resized) -> dict[str, set[int]]:
    places = (*of.places, *((),) * len(of.nodes))
    return {node: {*ranks} for node, ranks in zip(of.nodes, places, strict=False)}


# ---- pods that are missing are no faults


def without_missing(state: JobState) -> JobState:
    """Returns the state without holders and faults of missing pods. A rank that the job does not have is not missing: the owner
    has changed the number of pods, or somebody what is remembered."""
    state = state.with_(small=_of_its_pods(state.job, state.small))
    if state.small is None:
        return state
    missing = set(state.small.missing)
    holders = tuple("" if rank in missing else uid for rank, uid in enumerate(state.holders))
    left = ((one, _left(state.job, one.fault, missing)) for one in state.faults)
    faults = tuple(_with(one, fault) for one, fault in left if fault is not None)
    return state.with_(holders=holders, faults=faults)


def _of_its_pods(job: Job, small: Small | None) -> Small | None:
    missing = tuple(rank for rank in missing_of(small) if rank < job.pods)
    if small is None or not 0 < len(missing) < job.pods:
        return None
    if missing == small.missing:
        return small
    there, left = (tuple(rank for rank in ranks if rank in missing) for ranks in (small.there, small.lingering))
    return small.model_copy(update={"missing": missing, "there": there, "lingering": left})


def is_whole(state: JobState, sighting: Sighting) -> bool:
    """Returns whether another party restarted all pods of a small job: each rank has a pod, and none has the one that it had."""
    if state.small is None or len(state.holders) != len(sighting.holders):
        return False
    pairs = zip(_last_holders(state, state.small), sighting.holders, strict=True)
    return all(new not in ("", UNKNOWN_HOLDER, old) for old, new in pairs)


def whole_again(state: JobState) -> JobState:
    """Returns the state of a small job of which another party restarted all pods. Missing ranks have their last holders again, so
    that all pods are seen to be new: the others have not passed to other pods of the same training."""
    return state.with_(small=None, holders=_last_holders(state, state.small)) if state.small else state


def _last_holders(state: JobState, small: Small) -> tuple[str, ...]:
    return tuple(uid or small.old.get(rank, UNKNOWN_HOLDER) for rank, uid in enumerate(state.holders))


def seen(state: JobState, sighting: Sighting) -> Sighting:
    """Returns a sighting without holders and faults of missing pods."""
    if state.small is None:
        return sighting
    missing = set(state.small.missing)
    holders = tuple("" if rank in missing else uid for rank, uid in enumerate(sighting.holders))
    faults = tuple(fault for one in sighting.faults if (fault := _left(state.job, one, missing)) is not None)
    return sighting.model_copy(update={"holders": holders, "faults": faults})


def _with(one: Standing, fault: Fault) -> Standing:
    return one if fault is one.fault else one.model_copy(update={"fault": fault})


def _left(job: Job, fault: Fault, missing: set[int]) -> Fault | None:
    """Returns the fault as far as it is about pods that train. None: it is about missing ones only. Pods that are to take over
    are left to the mode that made them."""
    about = set(fault.pod_ranks) or set(job.layout.pods_of(fault.ranks))
    if fault.backup or not about & missing:
        return fault
    if about <= missing:
        return None
    pod_ranks = tuple(rank for rank in fault.pod_ranks if rank not in missing)
    ranks = tuple(rank for rank in fault.ranks if job.layout.pod_of(rank) not in missing)
    details = (one.model_copy(update={"ranks": tuple(r for r in one.ranks if r in ranks)}) for one in fault.details)
    return fault.model_copy(
        update={"pod_ranks": pod_ranks, "ranks": ranks, "details": tuple(one for one in details if one.ranks)}
    )


def named(pods: Collection[int]) -> str:
    """Names pod ranks for people."""
    return numbered("pod rank", sorted(pods))
