"""What the documentation shows is accepted as it stands."""

from pathlib import Path

import pytest

from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of, parse

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_job_is_accepted(path: Path) -> None:
    """Each job file that is shipped can be parsed and registered."""
    job = parse(path.read_text())
    registered = job_of(job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "uid"})}), Limits())
    assert registered.ranks == 4
