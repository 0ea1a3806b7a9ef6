"""State of the pods on a node that a person drains, before it is cordoned and while pods leave. Pure."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from rekindle.model.draining import LEFT, Draining, Moving, PodRow, Where
from rekindle.model.explained import PodThere, There
from rekindle.model.fault import EXPECTED_HOLDER, HOLDER_LENGTH, UNKNOWN_HOLDER, FaultKind
from rekindle.model.job import Drain
from rekindle.model.state import JobState, JobStatus, Standing
from rekindle.model.verdict import Verdict
from rekindle.policy.detection.job_filters import filters
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import eligibility, ladder, observe_only

Said = tuple[Where, str]

WITHOUT_A_SPARE = {
    Drain.WAIT: "it waits and is tried again",
    Drain.RESCHEDULE: "all pods of the job restart, from its last checkpoint",
    Drain.LET_GO: "it stays until it is evicted",
}

UNREGISTERED = "its job is not registered yet, or was refused (its event JobRefused says why): it is not moved"

ANOTHERS_RANK = "it does not hold its pod rank: it ends, or takes over and moves then"

NOBODY = ("", UNKNOWN_HOLDER, EXPECTED_HOLDER)


def forecast(node: str, there: There, jobs: Mapping[str, JobStatus]) -> Draining:
    """Returns what a drain of the node would do now, and why it is refused. A drain that cannot end is not begun.

    Args:
        jobs: registered jobs, by id.
    """
    rows = _rows(there, jobs, lambda pod, status, rule: _expected(node if there.cordoned else "", pod, status, rule))
    stays = [f"pod {row.pod.name} of job {row.job} would stay: {row.why}" for row in rows if row.where is Where.STAYS]
    refused = (there.refused,) if there.refused else tuple(stays)
    return Draining(node=node, cordoned=there.cordoned, rule=there.rule, refused=refused, rows=rows)


def progress(node: str, known: There, jobs: Mapping[str, JobStatus], seen: There | None = None) -> Draining:
    """Returns the state of the pods that were on the node.

    Args:
        seen: present state of the node; None: it was not read, and may have other pods now.
    """
    rows = _rows(known, jobs, lambda pod, status, rule: _so_far(node, pod, status, rule))
    if seen:
        here, taken_back = {pod.uid for pod in seen.pods}, not seen.cordoned
        rows = tuple(_as_seen(row, here, f"{node} is not cordoned any more" if taken_back else "") for row in rows)
    left = seen is not None and are_left(rows)
    running = ((one.running, one.recovery, _name(one)) for one in jobs.values())
    moving = tuple(Moving(job=job, mode=mode, workflow_id=recovery) for mode, recovery, job in running if mode and recovery)
    return Draining(node=node, cordoned=known.cordoned, rule=known.rule, rows=rows, moving=moving, drained=left)


def _as_seen(row: PodRow, here: Container[str], taken_back: str) -> PodRow:
    """Returns the row, corrected by the pods that are on the node now."""
    if row.where is Where.MOVED and row.pod.uid in here:
        return row.model_copy(update={"where": Where.MOVES, "why": ANOTHERS_RANK})
    if row.pod.uid not in here and row.where not in LEFT:
        return row.model_copy(update={"where": Where.MOVED, "why": f"it is not there any more; {row.why}"})
    if taken_back and row.where not in LEFT:
        return row.model_copy(update={"where": Where.STAYS, "why": taken_back})
    return row


def are_left(rows: Iterable[PodRow]) -> bool:
    return all(row.where in LEFT for row in rows)


def met(known: There, seen: There, jobs: Container[str]) -> There:
    """Returns the present state of the node, with the pods that were there before.

    Args:
        jobs: ids of registered jobs. Earlier pods of other jobs are left out, since their state is unknown.
    """
    now = {pod.uid for pod in seen.pods}
    before = (pod for pod in known.pods if pod.uid not in now and pod.job_id in jobs)
    return seen.model_copy(update={"pods": (*before, *seen.pods)})


def _rows(there: There, jobs: Mapping[str, JobStatus], said: Callable[[PodThere, JobStatus, str], Said]) -> tuple[PodRow, ...]:
    rows = []
    for pod in there.pods:
        if status := jobs.get(pod.job_id):
            rows.append(_row(pod, status, *said(pod, status, there.rule)))
        elif pod.pod_rank is not None:
            rows.append(PodRow(pod=pod, job=pod.job_id, where=Where.WAITS, why=UNREGISTERED))
    return tuple(rows)


def _row(pod: PodThere, status: JobStatus, where: Where, why: str) -> PodRow:
    return PodRow(pod=pod, job=_name(status), where=where, why=why)


def _name(status: JobStatus) -> str:
    return f"{status.state.job.namespace}/{status.state.job.name}"


def _expected(cordoned: str, pod: PodThere, status: JobStatus, rule: str) -> Said:
    """Returns the expected state of a pod, and why, if the node is drained.

    Args:
        cordoned: name of the node if it is cordoned already, so that earlier decisions apply. Empty: it is not.
    """
    state = status.state
    if said := _in_any_case(pod, state, rule):
        return said
    assert pod.pod_rank is not None
    if not _holds_its_rank(pod, state):
        return Where.MOVES, ANOTHERS_RANK
    if judged := next(_judged(cordoned, pod, state), ""):
        return Where.WAITS, judged
    plan = ladder.for_sub_health(state, pod.pod_rank)
    if plan.refused:
        return Where.WAITS, plan.refused
    first = f"when the {status.running} that runs has ended, " if status.running else ""
    return Where.MOVES, f"{first}by a hot switch; where no node is free for it, {WITHOUT_A_SPARE[state.job.drain]}"


def _so_far(node: str, pod: PodThere, status: JobStatus, rule: str) -> Said:
    state = status.state
    if not _holds_its_rank(pod, state) and pod.pod_rank is not None and not state.ended:
        nobody = state.holders[pod.pod_rank] in NOBODY
        return (Where.MOVES, "its rank gets another pod") if nobody else (Where.MOVED, _how(pod, state))
    if said := _in_any_case(pod, state, rule):
        return said
    judged = next(_judged(node, pod, state), "")
    if judged and state.job.drain is Drain.LET_GO:
        return Where.STAYS, f"{judged}; nothing keeps it from being evicted"
    if drain_verdicts.was_cancelled(judged):
        return Where.STAYS, f"{judged}; it is not tried again before {node} is uncordoned and cordoned again"
    if judged:
        return Where.WAITS, judged
    return Where.MOVES, f"{status.running} runs" if status.running else _not_begun(node, pod, state)


def _not_begun(node: str, pod: PodThere, state: JobState) -> str:
    given = max((one.fault.decided.settle for one in _about(node, pod, state) if one.fault.decided), default=0.0)
    return f"it is not begun yet{f': it counts when it has lasted {given:g} s' if given else ''}"


def _in_any_case(pod: PodThere, state: JobState, rule: str) -> Said | None:
    """Returns the state of a pod that does not depend on the course of the drain. None: it does."""
    if state.ended:
        return Where.OVER, f"its job has ended: {state.ended}"
    if pod.pod_rank is None:
        return Where.NO_RANK, "another one is made elsewhere when it ends"
    if why := next(filter(None, _for_good(pod.pod_rank, state, rule)), ""):
        return Where.STAYS, why
    return None


def _for_good(pod_rank: int, state: JobState, rule: str) -> Iterator[str]:
    job = state.job
    yield observe_only.ONLY if job.observe else ""
    yield f"its job ignores rule {rule} (rekindle.io/ignore-rules)" if rule in filters(job.annotations).ignored else ""
    yield ladder.for_sub_health(state, pod_rank).ignored
    yield "; ".join(eligibility.never(job, pod_rank))


def _holds_its_rank(pod: PodThere, state: JobState) -> bool:
    """Returns whether the pod holds its pod rank. If the pods of the job were never reported, every pod counts as the holder of
    its rank."""
    rank = pod.pod_rank
    return rank is not None and (rank >= len(state.holders) or state.holders[rank] == _short(pod.uid))


def _judged(node: str, pod: PodThere, state: JobState) -> Iterator[str]:
    """Yields the decision about each fault that makes the pod leave the node. Empty: the hot switch is still to be tried, or is
    retried."""
    return (one.judged for one in _about(node, pod, state))


def _about(node: str, pod: PodThere, state: JobState) -> Iterator[Standing]:
    """Yields the sub-healths of the node that are about this pod."""
    for one in state.faults:
        if one.fault.kind is FaultKind.SUB_HEALTH and one.fault.node == node and pod.pod_rank in one.fault.pod_ranks:
            yield one


def _how(pod: PodThere, state: JobState) -> str:
    """Returns how the rank got another pod, in words. Empty: the history of the job does not contain it."""
    for verdict in (verdict for incident in reversed(state.history) for verdict in reversed(incident.ladder)):
        for one in verdict.switched:
            if _short(one.before.uid) == _short(pod.uid):
                return f"to {one.after.node} by a {verdict.mode}{_lost(verdict)}"
        if verdict.restarted_at:
            return f"by a {verdict.mode}, from the last checkpoint"
    return ""


def _lost(verdict: Verdict) -> str:
    return "" if verdict.steps_lost is None else f", steps lost: {verdict.steps_lost}"


def _short(uid: str) -> str:
    return uid[:HOLDER_LENGTH]
