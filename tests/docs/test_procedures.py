"""Each mode has a page that names its phases and its limits."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from pydantic.alias_generators import to_camel

from rekindle.policy.modes.mode_table import MODES, ModeRow

PAGES = Path(__file__).resolve().parents[2] / "docs" / "procedures"
PHASE = re.compile(r'\.phase\("([^"]+)"\)')


@pytest.mark.parametrize("row", [pytest.param(row, id=row.mode.value) for row in MODES])
def test_the_page_of_a_mode_names_all_its_phases_and_limits(row: ModeRow) -> None:
    """An operator finds what a recovery is waiting for, and how long it may."""
    file = PAGES / f"{row.mode.replace(' ', '-')}.md"
    assert file.exists(), f"mode {row.mode} has no page: write docs/procedures/{file.name}"
    page = file.read_text()
    phases = PHASE.findall(inspect.getsource(importlib.import_module(row.procedure)))
    assert phases
    assert [phase for phase in phases if phase not in page] == []
    assert [limit for limit in set(row.limits or ()) if f"`{to_camel(limit)}`" not in page] == []


def test_the_index_of_procedures_leads_to_every_page() -> None:
    """No page is left out."""
    index = (PAGES / "README.md").read_text()
    assert {page.name for page in PAGES.glob("*.md")} - {"README.md"} == set(re.findall(r"\]\(([a-z-]+\.md)\)", index))
