"""Log format of the launcher, the manager and the ranks: one line for each event, followed by its fields as `name=value`.

Ranks share the terminal and may draw progress bars there. So each record is written in one call, with its end of line. On a
terminal it replaces an unfinished line, which a progress bar then draws again.
"""

import logging
import os
import sys
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
CLEAR_LINE = "\r\x1b[K"
"""Moves the cursor of a terminal to the start of its line and clears that line."""


class _Fields(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the standard library's name
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


class _Lines(logging.Handler):
    """Writes each record to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record))
        except Exception:  # noqa: BLE001  # as every handler of the standard library does
            self.handleError(record)


class _UnlessConfigured(_Lines):
    """Leaves records to the handlers of a script that has configured its logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def say(text: str) -> None:
    """Writes lines to standard error in one call. On a terminal they replace its current line."""
    stream = sys.stderr
    if stream is None:
        return
    line = f"{CLEAR_LINE if stream.isatty() else ''}{text}\n"
    descriptor = _descriptor(stream)
    if descriptor is None:
        stream.write(line)
        stream.flush()
    else:
        stream.flush()
        left = line.encode(errors="backslashreplace")
        while left:  # a signal may cut a long one in two
            left = left[os.write(descriptor, left) :]


def configure(program: str) -> None:
    """Sets up the logging of a launcher or a manager."""
    logging.basicConfig(level=logging.INFO, handlers=[_lines(_Lines(), program)], force=True)  # a manager may be a fork


def forget() -> None:
    """Restores the logging setup of a fresh interpreter, for a script that runs in a fork of a process of ours."""
    logging.basicConfig(level=logging.WARNING, handlers=[], force=True)


def configure_rank(rank: int) -> None:
    """Sets up what this package logs in a rank whose script has not configured logging. Its warnings and errors are shown."""
    logger = logging.getLogger("rekindle_training")
    if not logger.handlers:
        logger.addHandler(_lines(_UnlessConfigured(), "rekindle-train"))
        logger.handlers[0].addFilter(lambda record: _with(record, rank))


def _with(record: logging.LogRecord, rank: int) -> bool:
    record.rank = rank
    return True


def _lines(handler: logging.Handler, program: str) -> logging.Handler:
    handler.setFormatter(_Fields(f"%(asctime)s {program} %(levelname)s %(message)s"))
    return handler


def _descriptor(stream: TextIO) -> int | None:
    """Returns the stream's file descriptor. None: it is no file, for example because a script has replaced standard error."""
    try:
        return stream.fileno()
    except (OSError, AttributeError):  # UnsupportedOperation is an OSError
        return None
