"""The annotation that an earlier workflow of a job wrote on its object may have been overwritten by a person. A job is registered
with what can be read of it rather than not at all."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.job import Job, JobId
from rekindle.model.keys import MEMORY
from rekindle.model.sizes import LONGEST_TEXT
from rekindle.model.state import JobState, Registration, Remembered
from rekindle.policy.detection.watcher_updates import _remembered
from rekindle.policy.modes import cases
from tests.fuzz.broken import broken, fuzzed, reads, text
from workflows import job_reducers

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=1)

KEPT = {
    "job": JOB.id,
    "incidents": 3,
    "recovery": "recovery/default.gpt/3-hot-switch/0a1b2c3d",
    "downgrade": "no spare",
    "policy_before": "hotSwitch",
    "restarts": ["2026-01-01T00:00:00Z"],
}


def an_object(written: str) -> JobObject:
    metadata = ObjectMeta(name=JOB.name, uid=JOB.id, annotations={MEMORY: written})
    return JobObject(metadata=metadata, spec=JobSpec(pods=1, ranks_per_pod=1, template=PodTemplate(command=("train",))))


def remembered(written: str) -> Remembered:
    found = reads(lambda: _remembered(an_object(written)))
    assert isinstance(found, Remembered)
    state = job_reducers.registered(JobState.of(JOB), Registration(job=JOB, remembered=found), NOW)
    cases.next_case(state, NOW)
    assert len(state.model_dump_json()) < 10_000
    return found


@given(kept=broken(KEPT))
@fuzzed
def test_what_is_broken_is_read_or_is_nothing(kept: Any) -> None:
    """Broken content is read or ignored. The value that is read survives Temporal, and the job's workflow accepts it."""
    found = remembered(json.dumps(kept))
    assert Remembered.model_validate_json(found.model_dump_json()) == found


@given(st.one_of(text, st.text(max_size=200), st.integers(0, 100).map(lambda length: json.dumps(KEPT)[:length])))
@fuzzed
def test_any_text_is_read_or_is_nothing(written: str) -> None:
    """Text that was cut off counts as well."""
    remembered(written)


@pytest.mark.parametrize(
    ("field", "written"),
    [("restarts", ["2026-01-01T00:00:00"]), ("incidents", -1), ("incidents", 10**12)],
    ids=["a time without a zone", "a number below 0", "a number beyond all bounds"],
)
def test_a_field_that_no_workflow_wrote_is_left_out(field: str, written: Any) -> None:
    """The job's workflow would fail on it; the other remembered fields are kept."""
    without = {name: value for name, value in KEPT.items() if name != field}
    assert remembered(json.dumps({**KEPT, field: written})) == remembered(json.dumps(without)) != Remembered()


def test_what_is_remembered_of_another_job_is_nothing() -> None:
    """The object was copied from that of another job."""
    assert remembered(json.dumps({**KEPT, "job": "another"})) == Remembered()


def test_a_text_that_is_too_long_is_cut() -> None:
    """A text that is too long is cut, because it would travel with the job's state for ever."""
    assert len(remembered(json.dumps({**KEPT, "downgrade": "x" * 100_000})).downgrade) == LONGEST_TEXT
