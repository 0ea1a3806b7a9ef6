"""Exit codes of the command `rekindle`. Scripts branch on them: each has one meaning."""

import os
import sys
from enum import IntEnum
from io import TextIOWrapper

from rekindle.errors import BadInput, ClusterUnavailable, Conflict, Invalid, NotFound, Refused, RekindleError, Unavailable
from rekindle.interpreter import FLUSH_FAILED

WORDS = """Exit codes: 0 done (a recovery: recovered as asked) · 1 it ended otherwise · 2 bad input ·
3 a service does not answer · 4 refused, nothing was touched · 70 a bug of ours · 120 the output could not be written ·
130 interrupted · 141 the reader of the output has left."""


class Exit(IntEnum):
    DONE = 0
    OTHERWISE = 1
    BAD_INPUT = 2
    UNANSWERED = 3
    REFUSED = 4
    BUG = 70
    """`EX_SOFTWARE` of sysexits.h."""
    UNWRITTEN = FLUSH_FAILED
    INTERRUPTED = 130
    """Code that a shell gives to a command that SIGINT ended."""
    UNREAD = 141
    """Code that a shell gives to a command that SIGPIPE ended."""


class OutputLost(Exception):
    """Raised when standard output cannot be written: the disk is full, or its reader has ended."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.exit = Exit.UNREAD if isinstance(cause, BrokenPipeError) else Exit.UNWRITTEN


class Output(TextIOWrapper):
    """Standard output that raises its own errors as `OutputLost`, so that they differ from errors of a command.

    Unsupported characters are replaced by question marks.
    """

    def write(self, text: str, /) -> int:
        """Raises OutputLost."""
        try:
            return super().write(text)
        except OSError as error:
            raise OutputLost(error) from error

    def flush(self) -> None:
        """Raises OutputLost."""
        try:
            super().flush()
        except OSError as error:
            raise OutputLost(error) from error


def own_output() -> None:
    """Replaces standard output by `Output`."""
    if _stands_in(0, os.O_WRONLY):
        sys.stdin = open(0)  # noqa: SIM115  # until the process ends
    if _stands_in(1, os.O_RDONLY):
        sys.stdout = open(1, "w")  # noqa: SIM115
    before = sys.stdout
    if isinstance(before, TextIOWrapper):
        encoding, by_line = before.encoding, before.line_buffering
        sys.stdout = Output(before.detach(), encoding=encoding, errors="replace", line_buffering=by_line)


def _stands_in(number: int, flags: int) -> bool:
    """Returns whether the caller has closed this stream. Its number is then taken, and each use of it is an `OSError`."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        return True
    return False


def lost(error: OutputLost) -> Exit:
    """Discards what is still buffered, and returns the exit code for the reason."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.exit is Exit.UNWRITTEN:
        print(f"error: the output could not be written: {error}", file=sys.stderr)
    return error.exit


def of(error: RekindleError) -> Exit:
    """Returns the exit code for an error."""
    if isinstance(error, BadInput | NotFound | Invalid):
        return Exit.BAD_INPUT
    if isinstance(error, Unavailable | ClusterUnavailable):
        return Exit.UNANSWERED
    return Exit.REFUSED if isinstance(error, Refused | Conflict) else Exit.OTHERWISE
