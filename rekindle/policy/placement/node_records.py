"""Decides which nodes are set aside, since they cause incidents again and again. Pure."""

from datetime import datetime, timedelta

from rekindle.model.bounds import note
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.incident import Incident
from rekindle.model.mode import Outcome
from rekindle.model.node_record import KEPT, Blame, NodeIncident, NodeRecord
from rekindle.model.state import JobState

ENOUGH = 2
"""Number of incidents that set a node aside."""

APART = timedelta(minutes=10)
"""Incidents of several jobs within this time have the same cause."""

MOST_SHARE = 0.2
"""Largest share of the nodes of a cluster that have no new pods. One node is always accepted. Source: ours."""

MOST_BLAMED = 20
"""Maximum number of nodes that one incident is recorded for. More of them have a cause elsewhere, such as a switch."""

TOUCHED = (Outcome.RECOVERED, Outcome.ESCALATE, Outcome.GIVEN_UP)


def blame(state: JobState, incident: Incident) -> Blame | None:
    """Returns the nodes whose faults caused an incident. None: no node did.

    A process that ends by itself, a drain and a person's word blame none.
    """
    if not state.job.limits.node_incidents or not any(verdict.outcome in TOUCHED for verdict in incident.ladder):
        return None
    nodes = sorted({fault.node for fault in incident.faults if fault.node and _is_of_the_node(fault)})
    return Blame(nodes=tuple(nodes), incident=_told(state, incident)) if 0 < len(nodes) <= MOST_BLAMED else None


def _is_of_the_node(fault: Fault) -> bool:
    if fault.backup or fault.is_maintenance or fault.is_cordon:
        return False
    of_devices = any(detail.type is not FaultType.OTHER for detail in fault.details)
    return fault.kind in (FaultKind.NODE, FaultKind.SUB_HEALTH) or (fault.kind is FaultKind.PROCESS and of_devices)


def _told(state: JobState, incident: Incident) -> NodeIncident:
    limits = state.job.limits
    return NodeIncident(
        job_id=state.job.id,
        job=f"{state.job.namespace}/{state.job.name}",
        number=incident.number,
        about=note(incident.summary),
        at=incident.started_at,
        within=limits.node_incidents,
        aside=limits.node_aside,
    )


def with_incident(record: NodeRecord, new: NodeIncident) -> NodeRecord:
    """Returns the record with another incident. A repetition, and the same fault seen by another job, change nothing."""
    key = f"{new.job_id}/{new.number}"
    same = any(known.job_id != new.job_id and abs(known.at - new.at) < APART for known in record.incidents)
    if same or key in record.told:
        return record
    return record.model_copy(update={"incidents": (*record.incidents, new)[-KEPT:], "told": (*record.told, key)[-KEPT:]})


def without_old(record: NodeRecord, now: datetime) -> NodeRecord:
    """Returns the record without incidents that are too long ago to count."""
    kept = tuple(one for one in record.incidents if one.at + one.within > now)
    return record if len(kept) == len(record.incidents) else record.model_copy(update={"incidents": kept})


def why_aside(record: NodeRecord) -> str:
    """Returns why the node is to be set aside. Empty: it is not."""
    if record.aside or len(record.incidents) < ENOUGH:
        return ""
    named = "; ".join(words(one) for one in record.incidents[-ENOUGH:])
    return f"set aside after {len(record.incidents)} incidents within {record.incidents[-1].within}: {named}"


def words(incident: NodeIncident) -> str:
    """Returns a description of an incident for people."""
    return f"{incident.job} incident {incident.number}, {incident.about}"


def next_due(record: NodeRecord) -> datetime | None:
    """Returns the next time at which an incident is too long ago, or the node is released. None: the record is empty."""
    moments = [one.at + one.within for one in record.incidents]
    return min([*moments, *([record.aside.until] if record.aside else [])], default=None)


def too_many(isolated: int, nodes: int) -> str:
    """Returns why no further node may be set aside. Empty: one may.

    Args:
        isolated: number of nodes that have no new pods already.
    """
    if isolated + 1 <= max(1, int(nodes * MOST_SHARE)):
        return ""
    return f"{isolated} of {nodes} nodes have no new pods already, and at most {MOST_SHARE:.0%} may"
