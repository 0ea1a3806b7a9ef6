"""Conditions of pods and nodes: a transition time changes with the status, as in Kubernetes."""

from collections.abc import Iterable

from rekindle.model.cluster import Condition, condition_of
from simulators.local_cluster.store import now


def with_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """Returns the conditions with the new one in place of the one of the same type."""
    kept = tuple(conditions)
    before = condition_of(kept, new.type)
    same_status = before is not None and before.status == new.status
    moment = before.last_transition_time if before and same_status else now()
    stamped = new.model_copy(update={"last_transition_time": moment})
    if before is None:
        return (*kept, stamped)
    return tuple(stamped if condition is before else condition for condition in kept)
