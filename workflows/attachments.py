"""Decides which of a job's streams is current, and which process speaks on it.

Messages of gateways about streams may arrive late or twice. Pure.

Clocks of two gateways are never compared: an attachment is older than the job's own if that one has replaced it.
"""

from enum import StrEnum

from rekindle.model.attachment import Attachment
from rekindle.model.state import JobState
from rekindle.policy.dialogue.client_identity import Identity, identity
from rekindle.policy.training_sides.table import side_of

KEPT_SESSIONS = 8
"""Maximum number of ended sessions that are remembered. Messages of more sessions of one job are not in flight at once."""


class Standing(StrEnum):
    """Relation of an offered attachment to the job."""

    NEWS = "news"
    KNOWN = "known"
    """The attachment is the job's current one, and contains nothing new."""
    OVER = "over"
    """The attachment's session was detached, or replaced by another session."""


def standing(state: JobState, offered: Attachment) -> Standing:
    """Returns the relation of an attachment that a gateway offers to the job.

    A session that was replaced becomes current again when the other one has ended.
    """
    current = state.attachment
    if offered.session in state.detached:
        return Standing.OVER
    if current is None:
        return Standing.NEWS
    if current.session == offered.session:
        brings_progress = offered.progress is not None and state.progress is None
        return Standing.NEWS if brings_progress else Standing.KNOWN
    return Standing.OVER if offered.session in state.replaced else Standing.NEWS


def is_missing(state: JobState, session: str) -> bool:
    """Returns whether the stream that reports a fault is still unknown to a workflow that was just registered again.

    What can be done about the fault depends on the stream.
    """
    return bool(session) and not state.introduced and session not in sessions(state)


def attached(state: JobState, offered: Attachment, *, restarting: bool) -> JobState:
    """Returns the state with an attachment. Its progress is used only if none is known, as it may be older.

    Args:
        restarting: the job's pods are being restarted, and its manager with them.
    """
    current = state.attachment
    replaced = tuple(session for session in state.replaced if session != offered.session)
    if current and current.session != offered.session:
        replaced = (*replaced, current.session)[-KEPT_SESSIONS:]
    return state.with_(
        introduced=True,
        misses_stream=False,
        attachment=offered.model_copy(update={"progress": None}),
        progress=state.progress or offered.progress,
        replaced=replaced,
        client=offered.client or state.client,
        manager_lost="" if restarting else _manager_lost(state, offered.client) or state.manager_lost,
    )


def _manager_lost(state: JobState, client: str) -> str:
    """Describes how the manager was lost for good: its stream comes from another process. Empty: it was not lost."""
    if side_of(state.job).successor_continues or identity(state.client, client) is not Identity.ANOTHER:
        return ""
    return f"{client} is another process than {state.client}: it knows no rank, and no fault of a rank is reported"


def restarted(state: JobState) -> JobState:
    """Returns the state after a restart of all pods.

    Sessions other than the current one, and the lost manager, belonged to the previous training side.
    """
    current = state.attachment.session if state.attachment else ""
    former = tuple(session for session in sessions(state) if session != current)
    client = state.client if state.attachment else ""
    return state.with_(former=former[-2 * KEPT_SESSIONS :], client=client, manager="")


def sessions(state: JobState) -> tuple[str, ...]:
    """Returns all remembered sessions, the current one last."""
    current = (state.attachment.session,) if state.attachment else ()
    return tuple(dict.fromkeys((*state.former, *state.replaced, *state.detached, *current)))


def end_is_known(state: JobState, session: str) -> bool:
    """Returns whether the end of this session changes nothing.

    The end of an unknown session does, as its attachment may arrive later.
    """
    return session in state.detached or session in state.replaced


def detached(state: JobState, session: str) -> JobState:
    """Returns the state after the end of a session; a newer session stays."""
    ended = (*state.detached, session)[-KEPT_SESSIONS:]
    current = state.attachment
    left = None if current and current.session == session else current
    return state.with_(attachment=left, detached=ended)
