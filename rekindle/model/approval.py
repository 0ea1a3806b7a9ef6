"""Approval of modes by people: which modes of a job need it, the question that waits, and its answer."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from rekindle.model.base import Asked, Value
from rekindle.model.bounds import Note, Text
from rekindle.model.mode import Mode


class Unanswered(StrEnum):
    """Action when nobody answers within the limit `approval`."""

    DENY = "deny"
    """The mode is not run; the next one is tried."""

    APPROVE = "approve"


Approvals = Mapping[Mode, Unanswered]
"""Modes that need the approval of a person, each with the action when nobody answers."""


class Question(Value):
    """Question whether a mode may run, which waits for an answer."""

    mode: Mode
    incident: int
    about: Note
    since: datetime
    until: datetime
    unanswered: Unanswered = Unanswered.DENY
    storm: Note = ""
    """Reason of the storm by which the mode is held. Empty: the owner of the job wants to be asked."""


class Answer(Asked):
    """Argument of the update `answer`: the decision of a person about the question that waits."""

    approved: bool
    mode: Text = ""
    """Mode that is meant, such as `process-rescheduling`. Empty: the one that waits."""

    by: Text = ""
    reason: Text = ""


class Abort(Asked):
    """Argument of the update `abort`."""

    by: Text = ""
    reason: Text = ""


def spelled(mode: Mode) -> str:
    """Returns the name of a mode as in annotations and on the command line."""
    return mode.name.lower().replace("_", "-")
