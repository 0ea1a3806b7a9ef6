"""Prose of the documentation is wrapped, and its sentences are short."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "training/README.md"]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"]
MOST_WORDS = 25
LONGEST_LINE = 130
END = re.compile(r".+?(?:(?<=[.!?])(?=\s)|(?<=[.!?]\*\*)(?=\s)|(?=\n\n)|(?=\n\s*(?:-|\d+\.) )|\Z)", re.DOTALL)


def prose(page: Path) -> str:
    """Returns the page without code blocks, tables and headings. A code span is one word, and a link is its text."""
    lines, in_code = [], False
    for line in page.read_text().splitlines():
        in_code ^= line.lstrip().startswith("```")
        lines.append("" if in_code or line.lstrip().startswith(("```", "|", "#", "<")) or line.startswith("    ") else line)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", "\n".join(lines)))


def sentences(page: Path) -> Iterator[str]:
    for found in END.finditer(prose(page)):
        yield " ".join(found[0].split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_sentence_of_a_page_has_at_most_25_words(page: Path) -> None:
    """A reader understands it at the first reading."""
    assert [one for one in sentences(page) if len(re.findall(r"[\w'/-]+", one)) > MOST_WORDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_of_a_page_is_wrapped(page: Path) -> None:
    """Tables, code and links may be longer."""
    assert [line for line in prose(page).splitlines() if len(line) > LONGEST_LINE] == []
