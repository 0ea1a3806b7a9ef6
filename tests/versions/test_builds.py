"""What a version is, and which one takes over by itself."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle import deployment
from workers.versions import digest_of

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def _version(build_id: str, *, age: int, current: bool = False, served: bool = False) -> deployment.Version:
    """A version whose last worker asked for work `age` seconds ago."""
    asked_at = NOW - timedelta(seconds=age)
    return deployment.Version(build_id=build_id, current=current, served=served or current, asked_at=asked_at)


@pytest.mark.parametrize(
    ("versions", "takes_over"),
    [
        ((), True),
        ((_version("a", age=5, current=True),), True),
        ((_version("a", age=5, current=True), _version("b", age=1)), True),
        ((_version("a", age=5, current=True), _version("b", age=1, served=True)), False),
        ((_version("a", age=100, current=True), _version("b", age=1, served=True)), True),
    ],
    ids=["the first one", "unknown", "new", "was current", "the current one has no worker"],
)
def test_which_version_takes_over_by_itself(versions: tuple[deployment.Version, ...], takes_over: bool) -> None:
    """A new version does, and any other one only where the current one has no worker any more."""
    assert deployment.Deployment(versions=versions).yields_to("b", NOW) is takes_over


def test_the_same_code_has_the_same_build_and_other_code_another(tmp_path: Path) -> None:
    """Every file that workflows run counts, with its name and content, and nothing else."""
    (tmp_path / "workflows").mkdir()
    mode = tmp_path / "workflows" / "mode.py"
    mode.write_text("one")
    (tmp_path / "workflows" / "notes.txt").write_text("one")
    before = digest_of([tmp_path / "workflows"])
    (tmp_path / "workflows" / "notes.txt").write_text("two")
    assert digest_of([tmp_path / "workflows"]) == before
    mode.write_text("two")
    assert digest_of([tmp_path / "workflows"]) != before
