"""Incidents of one node, over all jobs: the state of the workflow that sets a node aside and releases it."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text

KEPT = 20
"""Maximum number of incidents that are kept of a node. Two of them set it aside."""


class NodeIncident(Value):
    """Incident that a fault of a node has caused. Argument of the signal `incident`."""

    job_id: Text
    job: Text
    number: int
    about: Note
    at: datetime
    within: timedelta
    """Time in which another incident sets the node aside. Zero: none does."""

    aside: timedelta
    """Time for which the node is set aside."""


class Blame(Value):
    """Incident with the nodes that have caused it."""

    nodes: tuple[str, ...]
    incident: NodeIncident


class Aside(Value):
    """Period in which no new pods are placed on a node."""

    reason: Note
    """Text of the annotation `rekindle.io/isolated`, by which the own mark is recognized."""

    until: datetime


class NodeRecord(Value):
    """State of the workflow `NodeRecord`, and its argument."""

    node: Text
    incidents: tuple[NodeIncident, ...] = ()
    told: tuple[Text, ...] = ()
    """Last incidents that were recorded, also those that have set the node aside. One that is told again counts once."""

    aside: Aside | None = None
    """Present period. None: the node is not set aside."""


class AsideRequest(Value):
    node: Text
    reason: Note
    job_id: Text = ""
    """Job of the last incident, for the event."""


class AsideResult(Value):
    refused: Note = ""
    """Reason why the node was not set aside. Empty: it was."""
