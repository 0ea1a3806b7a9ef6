"""Stream of a job that counts, whatever comes late, twice or in the wrong order."""

from datetime import UTC, datetime

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.job import Job, JobId
from rekindle.model.state import JobState
from workflows import attachments
from workflows.attachments import KEPT_SESSIONS, Standing

STATE = JobState.of(Job(id=JobId("j"), name="gpt", pods=2))
STEP = Progress(incarnation="life-1", step=1)


def at(session: str, progress: Progress | None = None) -> Attachment:
    return Attachment(queue=f"gateway/of-{session}", session=session, since=datetime(2020, 1, 1, tzinfo=UTC), progress=progress)


def attached(state: JobState, attachment: Attachment) -> JobState:
    return attachments.attached(state, attachment, restarting=False)


def after(*sessions: str) -> JobState:
    """The state when these were attached, one after the other."""
    state = STATE
    for session in sessions:
        state = attached(state, at(session))
    return state


def test_the_first_attachment_introduces_the_job() -> None:
    """An attached job is introduced, so that reports of its manager are expected."""
    assert attachments.standing(STATE, at("a")) is Standing.NEWS
    assert not STATE.introduced
    assert after("a").introduced
    assert after("a").attachment == at("a")


def test_the_same_attachment_again_changes_nothing() -> None:
    """Also with the progress that is known already, and with an older one."""
    state = after("a").with_(progress=STEP)
    for progress in (None, STEP, Progress(incarnation="life-0", step=1)):
        assert attachments.standing(state, at("a", progress)) is Standing.KNOWN


def test_a_lost_progress_is_news_and_is_taken() -> None:
    """The attachment that stays in the state carries none: modes compare attachments."""
    assert attachments.standing(after("a"), at("a", STEP)) is Standing.NEWS
    state = attached(after("a"), at("a", STEP))
    assert (state.progress, state.attachment) == (STEP, at("a"))


def test_a_progress_that_an_attachment_brings_never_replaces_a_known_one() -> None:
    """A gateway that the job left and came back to may know an older life only."""
    newer = Progress(incarnation="life-2", step=7)
    state = after("a").with_(progress=newer)
    assert attached(state, at("b", STEP)).progress == newer


def test_a_session_that_was_detached_never_comes_back() -> None:
    """An attachment that arrives after its end is refused, also if its end was the first report of it."""
    assert attachments.standing(attachments.detached(after("a"), "a"), at("a")) is Standing.OVER
    assert attachments.standing(attachments.detached(STATE, "a"), at("a")) is Standing.OVER
    assert attachments.standing(attachments.detached(after("b"), "a"), at("a")) is Standing.OVER


def test_a_session_that_was_replaced_comes_back_only_when_the_other_has_gone() -> None:
    """Two streams of a job never take turns; but one that lives on is better than none."""
    state = after("a", "b")
    assert attachments.standing(state, at("a")) is Standing.OVER
    alone = attachments.detached(state, "b")
    assert attachments.standing(alone, at("a")) is Standing.NEWS
    assert attached(alone, at("a")).replaced == ()


def test_the_end_of_another_session_leaves_the_own_one() -> None:
    """Only the session that is attached can be detached."""
    state = attachments.detached(after("a", "b"), "a")
    assert state.attachment == at("b")
    assert attachments.detached(state, "b").attachment is None


@pytest.mark.parametrize(("session", "known"), [("a", True), ("b", False), ("never seen", False)])
def test_an_end_that_changes_nothing_is_known(session: str, *, known: bool) -> None:
    """The end of a replaced session is known, and so is an end that was reported already."""
    assert attachments.end_is_known(after("a", "b"), session) is known
    assert attachments.end_is_known(attachments.detached(STATE, session), session)


def test_few_sessions_are_remembered() -> None:
    """The state of a job does not grow with the number of its streams."""
    state = after(*(f"s{number}" for number in range(100)))
    for number in range(100):
        state = attachments.detached(state, f"s{number}")
    assert len(state.replaced) == len(state.detached) == KEPT_SESSIONS
