"""Decides how many standbys a job has, which ones stay, and when they are created or deleted. Pure.

Standbys never cause a recovery. While the job itself has a real fault, nothing is done about its standbys.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rekindle.errors import NotFound
from rekindle.model.bounds import few
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.fault import FaultKind
from rekindle.model.job import Job, SubHealthStrategy, Trait
from rekindle.model.keys import GENERATION
from rekindle.model.standby import Standby, Upkeep, name_of
from rekindle.model.state import JobState
from rekindle.policy.detection.pod_ranks import is_standby, ranked
from rekindle.policy.placement import avoided_nodes
from rekindle.policy.training_sides.table import side_of

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(hours=2)
"""Pause after the first try, and the longest pause. It is doubled after each try, until a standby was used or the standbys were
complete for such a time."""

AT_ONCE = datetime.min.replace(tzinfo=UTC)


# ---- wanted standbys


def problem(job: Job) -> str:
    """Returns why a job that wants standbys cannot have any. Empty: it can."""
    if not job.standbys:
        return ""
    if reason := side_of(job).no_standbys:
        return reason
    if job.has(Trait.NO_STANDBYS):
        return f"a job of kind {job.kind} has no standbys: another party creates its pods"
    return ""


def wanted(job: Job) -> int:
    return 0 if problem(job) else job.standbys


# ---- changes


class Plan(NamedTuple):
    """Changes from the present pods of a job to the wanted number of standbys."""

    stay: list[Pod]
    end: list[Pod]
    new: list[str]
    """Names of the standbys to create."""

    model: Pod | None
    """Pod whose specification the new standbys get. None: no pod with a rank is alive, and no standby is wanted."""

    avoid_nodes: tuple[str, ...]
    """Nodes on which new standbys must not be placed. Nodes with a rank of the job are included."""


def plan(stem: str, pods: Sequence[Pod], count: int, avoid_nodes: Iterable[str]) -> Plan:
    """Returns the changes that lead to `count` standbys.

    Args:
        stem: prefix of their names.
        pods: all pods of the job.
        avoid_nodes: nodes that are sub-healthy or lost.

    Raises:
        NotFound: no pod with a rank is alive that could serve as the model of a standby.
    """
    holders = [one for one in ranked(pods) if one.holds and one.lives and one.rank is not None]
    model = max(holders, key=lambda one: one.rank or 0).pod if holders else None
    if model is None and count:
        raise NotFound("no pod of the job lives that a standby could be made after")
    known = [pod for pod in pods if is_standby(pod) and not pod.metadata.deletion_timestamp]
    ill = set(avoid_nodes)
    avoid = tuple(sorted({*ill, *(one.pod.spec.node_name for one in ranked(pods))} - {""}))
    fit = [pod for pod in known if model and _is_fit(pod, model, ill, avoid)]
    stay = sorted(fit, key=_worth)[:count]
    taken = {pod.metadata.name for pod in pods}
    free = [name for number in range(len(pods) + count) if (name := name_of(stem, number)) not in taken]
    return Plan(stay, [pod for pod in known if pod not in stay], free[: count - len(stay)], model, avoid)


def _is_fit(pod: Pod, model: Pod, ill: set[str], avoid: tuple[str, ...]) -> bool:
    """Returns whether a standby can stay. One without a node is replaced if the nodes to avoid have changed."""
    if pod.status.phase not in (PodPhase.PENDING, PodPhase.RUNNING) or pod.spec.node_name in ill:
        return False
    is_placed_well = bool(pod.spec.node_name) or pod.spec.avoid_nodes == avoid
    return is_placed_well and pod.metadata.labels.get(GENERATION, "0") == model.metadata.labels.get(GENERATION, "0")


def _worth(pod: Pod) -> tuple[bool, bool, str]:
    """Returns the sort key of standbys: those that run come first and stay, then those that have a node."""
    return pod.status.phase is not PodPhase.RUNNING, not pod.spec.node_name, pod.metadata.name


# ---- times of tries


def next_try(state: JobState) -> datetime | None:
    """Returns the time of the next try to create or delete standbys. None: nothing is to be done, training has not begun, or
    something else is wrong."""
    job = state.job
    is_trained = state.progress is not None and not state.problems and not state.ended and not job.observe
    is_broken = any(one.fault.kind is not FaultKind.SUB_HEALTH and one.is_here for one in state.faults)
    if not is_trained or is_broken or are_as_wanted(state):
        return None
    tried = state.upkeep
    return tried.tried_at + _pause(tried) if tried.tried_at else AT_ONCE


def are_as_wanted(state: JobState) -> bool:
    """Returns whether the wanted number of standbys runs and all are healthy. A standby that was just created is still checked:
    it may be gone before it is reported."""
    return len(state.standbys) == wanted(state.job) and all(one.runs and not one.wrong for one in state.standbys)


def tried(before: Upkeep, now: datetime) -> Upkeep:
    """Returns the record after one more try. The try counts as the first if nothing had to be done for the length of a pause."""
    is_quiet = before.tried_at is None or now - before.tried_at > 2 * _pause(before)
    return before.model_copy(update={"tried_at": now, "tries": 1 if is_quiet else before.tries + 1})


def taken(upkeep: Upkeep) -> Upkeep:
    """Returns the record after a standby was used. The next try counts as the first."""
    return upkeep.model_copy(update={"tries": 0})


def _pause(upkeep: Upkeep) -> timedelta:
    doubled = min(max(upkeep.tries - 1, 0), 20)
    return min(FIRST_PAUSE * (1 << doubled), LONGEST_PAUSE)


def to_avoid(state: JobState) -> tuple[str, ...]:
    """Returns the nodes that standbys avoid. Sub-healthy ones are included whatever the policy, since standbys replace pods that
    leave such nodes."""
    return avoided_nodes.to_avoid((one.fault for one in state.faults), SubHealthStrategy.HOT_SWITCH)


# ---- messages for people


def trouble(state: JobState) -> tuple[str, str]:
    """Returns the reason and the message of the event about a problem of the standbys. Both are empty if there is none."""
    if refusal := problem(state.job):
        return "StandbysRefused", f"{refusal}; training goes on without"
    if lost := next((one for one in state.standbys if one.wrong), None):
        return "StandbyLost", f"standby {lost.name} is replaced: {lost.wrong}"
    if waiting := next((one for one in state.standbys if one.waits), None):
        return "StandbyUnschedulable", f"standby {waiting.name} has no node, training goes on without: {waiting.waits}"
    if refused := state.upkeep.refused:
        return "StandbyNotMade", f"not all standbys could be made, training goes on without: {refused}"
    return "", ""


def words(state: JobState) -> str:
    """Returns the number of running and wanted standbys, their nodes, and a problem. Empty: no standbys are wanted, and there are
    none."""
    if not state.job.standbys and not state.standbys:
        return ""
    running = [one for one in state.standbys if one.runs and not one.wrong]
    where = f" ({few([one.node for one in running])})" if running else ""
    wrong = problem(state.job) or next((_short(one) for one in state.standbys if one.wrong or one.waits), state.upkeep.refused)
    return f"standbys: {len(running)} of {state.job.standbys}{where}" + (f"; {wrong}" if wrong else "")


def _short(one: Standby) -> str:
    return f"{one.name}: {one.wrong or one.waits}"
