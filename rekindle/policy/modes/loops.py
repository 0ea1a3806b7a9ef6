"""Restarts that end the same way: a fault that comes back from the same state is not answered alike a third time. Pure.

Only faults of software count, of which nobody knows the cause. Nodes may be lost at any step.
"""

from collections.abc import Iterable, Sequence

from rekindle.model.bounds import few, numbered
from rekindle.model.fault import Fault
from rekindle.model.incident import Incident
from rekindle.model.mode import Outcome
from rekindle.model.state import JobState
from rekindle.policy.modes import eligibility, faulty_ranks
from rekindle.policy.modes.retries import RESTARTS, is_unconditional

MOST_ALIKE = 2
"""Number of restarts from the same state for the same fault. The next one goes to another node, or the job is given up."""


def suspects(state: JobState) -> tuple[str, ...]:
    """Returns nodes on which the same fault came back after each restart from the same state, so that another node is tried."""
    alike = _alike(state)
    return _common_nodes(alike, eligibility.real_faults(state)) if len(alike) >= MOST_ALIKE else ()


def hopeless(state: JobState) -> str:
    """Returns why another restart would end like the last ones. Empty: it need not."""
    alike = _alike(state)
    if len(alike) < MOST_ALIKE or suspects(state):
        return ""
    nodes = sorted({fault.node for incident in alike for fault in incident.faults if fault.node})
    where = f", on {few(nodes)}" if nodes else ""
    who = numbered("pod rank", sorted(_pods(state, eligibility.real_faults(state))))
    step = alike[-1].ladder[-1].resumed_at
    return f"the job was restarted {len(alike)} times at step {step}, and {who} failed each time{where}: the cause is in the job"


def _alike(state: JobState) -> list[Incident]:
    """Returns the latest restarts that were for a fault like the present one, and that began with the same step."""
    present = eligibility.real_faults(state)
    if not is_unconditional(present):
        return []
    pods, step, found = _pods(state, present), None, list[Incident]()
    for incident in reversed(state.history):
        last = incident.ladder[-1]
        was_restarted = last.mode in RESTARTS and last.outcome is Outcome.RECOVERED and last.resumed_at is not None
        step = last.resumed_at if step is None else step
        pods &= _pods(state, incident.faults)
        is_later = state.tried_again is None or incident.started_at > state.tried_again
        if not (was_restarted and is_later and last.resumed_at == step and pods and is_unconditional(incident.faults)):
            break
        found.append(incident)
    return found


def _pods(state: JobState, faults: Iterable[Fault]) -> set[int]:
    faulty = [one for fault in faults for one in faulty_ranks.ranks_of(state.job, fault)]
    return set(faulty_ranks.pods_of(state.job, faulty))


def _common_nodes(alike: Sequence[Incident], present: Iterable[Fault]) -> tuple[str, ...]:
    groups = [{fault.node for fault in faults if fault.node} for faults in (present, *(one.faults for one in alike))]
    return tuple(sorted(set.intersection(*groups)))
