"""A version is a build of the code, and takes over by itself only under conditions."""

import ast
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle import deployment
from workers.versions import RUN_BY_WORKFLOWS, ServerClock, Silences, digest_of

ROOT = Path(__file__).parents[2]

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def _version(build_id: str, *, age: int, current: bool = False, served: bool = False) -> deployment.Version:
    """Returns a version whose last worker polled `age` seconds ago."""
    asked_at = NOW - timedelta(seconds=age)
    return deployment.Version(build_id=build_id, current=current, served=served or current, asked_at=asked_at)


@pytest.mark.parametrize(
    ("versions", "takes_over"),
    [
        ((), True),
        ((_version("a", age=5, current=True),), True),
        ((_version("a", age=5, current=True), _version("b", age=1)), True),
        ((_version("a", age=5, current=True), _version("b", age=1, served=True)), False),
    ],
    ids=["the first one", "unknown", "new", "was current"],
)
def test_which_version_takes_over_by_itself(versions: tuple[deployment.Version, ...], takes_over: bool) -> None:
    """A new version does, and any other one only where none is current."""
    assert deployment.Deployment(versions=versions).yields_to("b") is takes_over


def test_a_version_has_lost_its_workers_when_it_is_seen_without_any_for_a_while() -> None:
    """A server that restarted knows of no worker for a moment: that is no loss."""
    silences, later = Silences(), NOW + timedelta(seconds=20)
    silent, asking = _version("a", age=100), _version("a", age=-19)
    assert not silences.confirm(silent, NOW)
    assert not silences.confirm(asking, NOW + timedelta(seconds=10))
    assert not silences.confirm(silent, later)
    assert silences.confirm(silent, later + timedelta(seconds=20))


def test_time_is_that_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own clock may be ahead or late. Time goes on while nobody asks for work, and does not go back."""
    clock, at = ServerClock(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    assert clock.now(deployment.Deployment(versions=(_version("a", age=100), _version("b", age=0)))) == NOW
    at[0] += 30
    assert clock.now(deployment.Deployment(versions=(_version("b", age=0),))) == NOW + timedelta(seconds=30)
    assert clock.now(deployment.Deployment(versions=(_version("b", age=-40),))) == NOW + timedelta(seconds=40)
    assert clock.now(deployment.Deployment()) == NOW + timedelta(seconds=40)


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


def _imported(path: Path) -> set[Path]:
    """Returns the modules of `rekindle` that a file imports."""
    tree = ast.walk(ast.parse(path.read_text()))
    froms = [node for node in tree if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rekindle")]
    names = {name for node in froms for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))}
    files = {ROOT / f"{str(name).replace('.', '/')}.py" for name in names}
    return {file for file in files if file.exists()}


def test_whatever_workflows_import_of_the_package_is_part_of_the_build() -> None:
    """A change of such a module may change the next step of a recovery: it is another version."""
    reached, next_ones = set[Path](), {*(ROOT / "workflows").glob("*.py"), ROOT / "rekindle" / "worker_plugin.py"}
    while next_ones:
        reached |= next_ones
        next_ones = {found for file in next_ones for found in _imported(file)} - reached
    of_the_package = {file.relative_to(ROOT / "rekindle").parts[0] for file in reached if (ROOT / "rekindle") in file.parents}
    assert of_the_package == set(RUN_BY_WORKFLOWS)
