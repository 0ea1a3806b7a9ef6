"""Examples of the documentation are accepted as they are, and match their description."""

import difflib
import re
from pathlib import Path

import pytest

from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of, parse
from rekindle_training import examples

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SCRIPTS = Path(examples.__path__[0])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_job_is_accepted(path: Path) -> None:
    """Each job file of the repository can be parsed and registered."""
    job = parse(path.read_text())
    registered = job_of(job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "uid"})}), Limits())
    assert registered.ranks == 4


@pytest.mark.parametrize("name", ["gpt", "ddp", "hsdp", "megatron"])
def test_the_readme_says_in_how_many_lines_an_example_differs(name: str) -> None:
    """The number counts lines that are added to the plain version or replace one of it."""
    before, after = ((SCRIPTS / file).read_text().splitlines() for file in (f"{name}_plain.py", f"{name}.py"))
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    stated = re.search(rf"`examples/{name}\.py` \((\d+) lines\)", (ROOT / "training" / "README.md").read_text())
    assert stated is not None
    assert len(added) == int(stated[1]), "\n".join(added)
