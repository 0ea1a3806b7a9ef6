"""Messages of errors, refusals and verdicts: a table has them all, so that a change of what users read is seen."""

import re

from tests.docs.messages import TABLE, found

INSIDERS = r"\b(anew|by whomever|whoever|nobody|sick)\b"
"""Terms that a reader who does not know the code misunderstands."""


def test_the_table_has_every_message() -> None:
    """`python -m tests.docs.messages` writes the table; its diff shows what a user reads from now on."""
    assert TABLE.read_text().splitlines() == found()


def test_messages_are_plain_phrases() -> None:
    """A message follows a text of the caller, so it ends without a full stop. It contains no term that only insiders know."""
    texts = [line.split("\t")[2] for line in found()]
    assert len(texts) > 500
    assert [text for text in texts if re.search(rf"\w\.$|{INSIDERS}", text)] == []
