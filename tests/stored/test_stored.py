"""Newer code reads what older code has stored, and a format that changes has a new example."""

import json
from typing import Any

import pytest

from rekindle.model import stored
from rekindle.model.maintenance import Maintenance
from rekindle.model.plan import Upgrade
from rekindle.model.state import JobState, Remembered
from tests.stored.golden import FORMATS, STATE, schema, versions

KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "job-state": (JobState, ("job",)),
    "remembered": (Remembered, ("job",)),
    "maintenance": (Maintenance, ()),
    "upgrade": (Upgrade, ()),
}
FILES = [(name, file) for name in FORMATS for file in versions(name)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_changes_has_a_new_example(name: str) -> None:
    """The newest file is what this version writes: `python -m tests.stored.golden` adds one, and the older ones stay."""
    newest = json.loads(versions(name)[-1].read_text())
    assert newest["schema"] == schema(name), "the stored format has changed: run `python -m tests.stored.golden`"
    assert newest["example"] == json.loads(FORMATS[name].model_dump_json())


@pytest.mark.parametrize(("name", "file"), FILES, ids=[file.stem for _, file in FILES])
def test_every_version_is_read_whole(name: str, file: Any) -> None:
    """All data of an older version are still read."""
    kind, needed = KINDS[name]
    example = json.loads(file.read_text())["example"]
    value, left_out = stored.read(kind, example, needed)
    assert left_out == ()
    assert value


def written(**changes: object) -> dict[str, Any]:
    return {**json.loads(STATE.model_dump_json()), **changes}


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"history": [{"number": 3, "ladder": [{"handled": ["an id"]}]}]}, ("history",)),
        ({"faults": "none", "restarts": {}}, ("faults", "restarts")),
        ({"unheard_of": 1}, ()),
    ],
)
def test_what_means_nothing_any_more_is_left_out(changes: dict[str, object], left_out: tuple[str, ...]) -> None:
    """The other fields are kept: a job whose state could not be read would have no protection, for ever."""
    state, found = stored.read(JobState, written(**changes), ("job",))
    assert found == left_out
    assert state == STATE.model_copy(update=dict.fromkeys(left_out, ()))


@pytest.mark.parametrize("given", [None, 3, "gpt", [], {}, {"job": "gpt"}, {"job": {"id": "job"}}])
def test_without_a_job_there_is_no_state(given: object) -> None:
    """A workflow that a person has started by hand has no state of a job."""
    assert stored.read(JobState, given, ("job",))[0] is None
