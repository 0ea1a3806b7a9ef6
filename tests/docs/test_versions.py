"""The page of versions is made from the tables, and the tables say what the code checks."""

import pytest

from docs.versions import PAGE, page
from rekindle.model.compatibility import API_SERVER, TABLE, TEMPORAL, TRAINING_SIDE
from rekindle_wire import PROTOCOL
from tests.support.cluster import ROOT


def test_the_page_of_versions_is_current() -> None:
    """`make versions` was run after the last change of a table."""
    assert PAGE.read_text() == page(), "run `make versions`"


def test_the_table_has_what_other_files_say() -> None:
    """The wire, whose package the wheel of the client does not need, and the charts repeat two of its numbers."""
    assert (TRAINING_SIDE.oldest, TRAINING_SIDE.newest) == (str(PROTOCOL), str(PROTOCOL))
    for chart in ("rekindle", "rekindle-crds"):
        text = (ROOT / "deploy" / "helm" / chart / "Chart.yaml").read_text()
        assert f'kubeVersion: ">={API_SERVER.oldest}.0-0"' in text
    assert all(fit.problem(version) == "" for fit in TABLE for version in fit.tried)


@pytest.mark.parametrize(
    ("found", "fits"),
    [("1.31.9", False), ("1.32.0", True), ("1.32", True), ("2.0.1", True), ("1.9.0", False), ("1.31.0-cloud", True), ("", True)],
)
def test_a_temporal_server_fits_from_its_oldest_version_on(found: str, *, fits: bool) -> None:
    """The message has both versions. A version with a suffix is counted by who built it, and is not compared."""
    problem = TEMPORAL.problem(found)
    assert problem == ("" if fits else f"the Temporal server is {found}: accepted are versions from 1.32")


def test_a_newest_version_is_a_bound_too() -> None:
    """Versions are compared by as many numbers as the bound has."""
    fit = TEMPORAL.model_copy(update={"newest": "1.34"})
    assert (fit.problem("1.34.7"), fit.problem("v1.33")) == ("", "")
    assert fit.problem("1.35.0") == "the Temporal server is 1.35.0: accepted are versions from 1.32 to 1.34"
