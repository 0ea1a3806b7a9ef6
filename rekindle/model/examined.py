"""State of the parts of an installation: links, as `rekindle doctor` shows them, and why a process does not serve."""

from enum import StrEnum

from rekindle.errors import Unavailable
from rekindle.model.base import Value
from rekindle.model.bounds import cut

LONGEST = 4_000
"""Maximum bytes of the words of a link, as servers and pods choose most of them."""


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Works, but something of it will be missed."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Cannot be seen now."""


class Link(Value):
    """Part of an installation, and its state."""

    name: str
    health: Health
    words: str
    mend: str = ""
    """Action that repairs the link. Empty: none is needed."""


def ok(name: str, words: str) -> Link:
    return _link(name, Health.OK, words)


def warning(name: str, words: str, mend: str) -> Link:
    return _link(name, Health.WARNING, words, mend)


def failed(name: str, words: str, mend: str) -> Link:
    return _link(name, Health.FAILED, words, mend)


def unknown(name: str, words: str, mend: str = "") -> Link:
    return _link(name, Health.UNKNOWN, words, mend)


def _link(name: str, health: Health, words: str, mend: str = "") -> Link:
    return Link(name=_in_a_line(name), health=health, words=_in_a_line(words), mend=_in_a_line(mend))


def _in_a_line(words: str) -> str:
    """Returns words without line ends, so that they cannot be taken for another link, and without halves of characters."""
    return cut(" ".join(words.encode(errors="replace").decode().splitlines()), LONGEST)


class Problem(Value):
    """Reason for which a process does not serve."""

    reason: str
    """Word for programs, written as reasons of conditions are on Kubernetes."""

    words: str
    mend: str = ""
    """Action that ends it. Empty: the words say it."""

    def __str__(self) -> str:
        return f"{self.words}; {self.mend}" if self.mend else self.words

    @property
    def error(self) -> Unavailable:
        return Unavailable(str(self), self.reason)
