"""Modes of recovery, and the outcomes in which they end."""

from enum import StrEnum


class Mode(StrEnum):
    """A mode of recovery. The value is shown to people, in the Temporal UI and in output."""

    HOT_SWITCH = "hot switch"
    ONLINE_RETRY = "online retry"
    IN_PLACE = "in-place recovery"
    PROCESS_RESCHEDULING = "process rescheduling"
    ELASTIC_TRAINING = "elastic training"
    DYING_GASP = "dying gasp"
    POD_RESCHEDULING = "pod rescheduling"
    JOB_RESCHEDULING = "job rescheduling"
    LINK_SWITCH = "link switch"
    STRESS_TEST = "stress test"
    SCALING = "scaling"


FAULT_MODES = tuple(mode for mode in Mode if mode not in (Mode.LINK_SWITCH, Mode.STRESS_TEST, Mode.SCALING))
"""Modes that are tried for a fault. The others run only on request."""


class Outcome(StrEnum):
    """Result of a recovery."""

    RECOVERED = "recovered"
    ESCALATE = "escalate"
    """The next mode is tried, which policy chooses."""
    REFUSED = "refused"
    """Nothing was changed."""
    IGNORED = "ignored"
    """The sub-health was ignored; training continues."""
    CANCELLED = "cancelled"
    GIVEN_UP = "given_up"
