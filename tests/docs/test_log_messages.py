"""Log messages: an operator can search the code for each of them, and reads what happened to what."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("rekindle", "workflows", "activities", "workers", "simulators", "training/src/rekindle_training")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = ("log", "logger")
NO_SUBJECT = {"a", "an", "the", "it", "its", "this", "these", "not", "no", "nothing", "is", "told"}


def _messages() -> Iterator[str]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(value=logger, attr=level), args=[ast.Constant(value=str(message)), *_]):
                        if level in LEVELS and ast.unparse(logger).rpartition(".")[2] in LOGGERS:
                            yield message


def test_a_log_message_is_found_at_one_place() -> None:
    """A message that two places write does not say which of them wrote it."""
    counted = Counter(_messages())
    assert len(counted) > 150
    assert [message for message, count in counted.items() if count > 1] == []


def test_a_log_message_begins_with_its_subject() -> None:
    """Messages are like `update sent`, not `told`: no article or pronoun at the start, and more than a single term."""
    odd = [message for message in _messages() if message.split()[0] in NO_SUBJECT or " " not in message]
    long_ones = [message for message in odd if len(message) < 90]  # a warning for who trains is a sentence
    assert long_ones == []
