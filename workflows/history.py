"""History of a job: what stays of its incidents, so that it fits into the state of the job. Pure."""

from collections.abc import Iterable

from rekindle.model import bounds
from rekindle.model.incident import Incident
from rekindle.model.state import KEPT_INCIDENTS
from rekindle.model.verdict import Verdict
from workflows import faults

KEPT_WHOLE = 3
"""Number of latest incidents whose phases and faults stay in the history. Of the others only the verdicts stay."""

SHORT = 120
"""Maximum bytes of a note of a phase, and of the texts of an older incident."""


def kept(history: Iterable[Incident]) -> tuple[Incident, ...]:
    """Returns the latest incidents, the older ones of them in outline."""
    incidents = list(history)[-KEPT_INCIDENTS:]
    older = [_outline(incident) for incident in incidents[:-KEPT_WHOLE]]
    return (*older, *(_bounded(incident) for incident in incidents[-KEPT_WHOLE:]))


def _bounded(incident: Incident) -> Incident:
    kept = tuple(faults.brief(fault) for fault in incident.faults[: faults.KEPT_OF_AN_INCIDENT])
    return incident.model_copy(update={"faults": kept, "ladder": tuple(_brief(verdict) for verdict in incident.ladder)})


def _brief(verdict: Verdict) -> Verdict:
    """Returns the verdict with shortened notes of its phases, as the reason contains the full text, and without what the history
    does not need."""
    phases = tuple(phase.model_copy(update={"note": bounds.cut(phase.note, SHORT)}) for phase in verdict.phases)
    return verdict.with_(
        phases=phases, unread=(), situation=None, moved_links=None, moved_by="", tested=None, found=(), resized=None
    )


def _outline(incident: Incident) -> Incident:
    ladder = (short(verdict, SHORT) for verdict in incident.ladder)
    return incident.model_copy(update={"faults": (), "waits": (), "ladder": tuple(ladder)})


def short(verdict: Verdict, most: int) -> Verdict:
    """Returns the outcome of the verdict with its reason shortened to so many bytes."""
    reason, look_at = bounds.cut(verdict.reason, most), bounds.cut(verdict.look_at, SHORT)
    return verdict.with_(
        reason=reason,
        look_at=look_at,
        phases=(),
        unread=(),
        situation=None,
        handled=(),
        switched=(),
        moved_links=None,
        moved_by="",
        tested=None,
        found=(),
        resized=None,
    )
