"""The page of settings is made from the code, and says all of it."""

from docs.settings import PAGE, names, page
from rekindle.model.limits import Limits
from rekindle.settings import Settings


def test_the_page_of_settings_is_current() -> None:
    """`make settings` was run after the last change of a setting, a limit, a label or an annotation."""
    assert PAGE.read_text() == page(), "run `make settings`"


def test_each_setting_and_each_limit_has_its_meaning() -> None:
    """A field without a docstring would be a row without a meaning."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(Settings.model_fields) - 1 + len(Limits.model_fields) + len(names())
    assert not [cells[0] for cells in rows if cells[-1] in ("- |", " |")]
