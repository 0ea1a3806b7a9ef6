"""The phase of a job is what is so: it trains when it has completed a step, not when it was submitted."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.elastic import Small
from rekindle.model.fault import HOLDERS, WATCHER, Fault, FaultKind
from rekindle.model.job import Job, JobId
from rekindle.model.mode import Mode
from rekindle.model.state import JobState, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.policy.modes.job_phase import has_trained, phase

ATTACHED = {"attachment": Attachment(queue="gateway/gateway-0", session="s", since=datetime(2026, 1, 1, tzinfo=UTC))}
STEPPED = {"progress": Progress(incarnation="life-1", step=1)}
IS_SMALL = {"small": Small(since=datetime(2026, 1, 1, tzinfo=UTC), missing=(0,))}
RUNNING = Mode.HOT_SWITCH
NO_PODS = Standing(fault=Fault(id=HOLDERS, kind=FaultKind.POD, pod_ranks=(0,), source=WATCHER), judged="given_up")


@pytest.mark.parametrize(
    ("side", "known", "running", "words"),
    [
        (TrainingSide.REKINDLE, {}, None, "starting"),
        (TrainingSide.REKINDLE, ATTACHED, None, "starting"),
        (TrainingSide.REKINDLE, {**ATTACHED, **STEPPED}, None, "training"),
        (TrainingSide.REKINDLE, STEPPED, None, "training, not attached"),
        (TrainingSide.REKINDLE, {**ATTACHED, **STEPPED, **IS_SMALL}, None, "training, small"),
        (TrainingSide.REKINDLE, {**STEPPED, **IS_SMALL}, None, "training, not attached"),
        (TrainingSide.MINDIO, {}, None, "starting"),
        (TrainingSide.MINDIO, ATTACHED, None, "training"),
        (TrainingSide.REKINDLE, {**STEPPED, "faults": (NO_PODS,)}, None, "no pods"),
        (TrainingSide.REKINDLE, {**STEPPED, "faults": (NO_PODS,)}, RUNNING, "recovering"),
        (TrainingSide.REKINDLE, {**ATTACHED, **STEPPED}, RUNNING, "recovering"),
        (TrainingSide.REKINDLE, {**STEPPED, "ended": "the job succeeded"}, None, "ended"),
    ],
)
def test_a_job_trains_when_it_has_completed_a_step(
    side: TrainingSide, known: dict[str, Any], running: Mode | None, words: str
) -> None:
    """MindIO reports no step. Its attachment counts instead."""
    state = JobState.of(Job(id=JobId("uid"), name="gpt", training_side=side, pods=1))
    assert phase(state.model_copy(update=known), running) == words


@pytest.mark.parametrize(
    ("words", "trained"),
    [
        ("training", True),
        ("training, not attached", True),
        ("training, small", True),
        ("no pods", True),
        ("starting", False),
        ("recovering", None),
        ("", None),
    ],
)
def test_a_phase_tells_whether_the_job_was_ever_seen_to_train(words: str, trained: bool | None) -> None:
    """A job that is being recovered does not."""
    assert has_trained(words) is trained
