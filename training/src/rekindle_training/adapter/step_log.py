"""Step log: one JSON line for each completed step of each rank. It shows what ran where, and what had to be repeated.

A full file is set aside and another one is begun; the one before it is deleted. Only the end of a file is read, so that a process
that starts after a million steps starts as fast.
"""

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.stretches import Stretch

log = logging.getLogger(__name__)

LARGEST = 16 * 1024 * 1024
"""Maximum bytes of a file. There are two files, of more than 50,000 steps each."""
LONGEST_LINE = 4096


class StepLog:
    """Appends to `steps/rank-00000.jsonl`; every process that is this rank, one after the other, writes to the same file."""

    def __init__(self, environment: RankEnvironment) -> None:
        self._file: IO[str] | None = None
        who = {
            "rank": environment.rank,
            "pid": os.getpid(),
            "pod": environment.pod,
            "pod_uid": environment.pod_uid,
            "node": environment.node,
        }
        self._who = json.dumps(who)[:-1]
        if environment.job_dir is not None:
            self._path = environment.job_dir / "steps" / f"rank-{environment.rank:05d}.jsonl"
            self._older = self._path.with_suffix(".older")
            with self._giving_up():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._open()
                if _end(self._path)[-1:] not in (b"", b"\n"):
                    self._write("\n")  # ends a line that a killed process left torn

    def last_step(self) -> int:
        """Returns the last step that a process of this rank completed. 0 before the first. A torn line does not count."""
        return next((int(line["step"]) for line in self._last_lines()), 0)

    def last_stretch(self) -> Stretch | None:
        """Returns the stretch of the last completed step. None before the first one, and if an earlier version wrote its line."""
        try:
            return next((_stretch(line) for line in self._last_lines()), None)
        except (KeyError, TypeError, ValueError):
            return None

    def _last_lines(self) -> Iterator[dict[str, Any]]:
        """Reads the last lines, the newest first."""
        lines: list[bytes] = []
        if self._file is not None:
            with self._giving_up():
                lines = [line for path in (self._older, self._path) for line in _end(path).splitlines()]
        for line in reversed(lines):
            with suppress(ValueError):  # it is torn
                read = json.loads(line)
                if isinstance(read, dict) and isinstance(read.get("step"), int):
                    yield read

    def record(self, step: int, start: float, end: float, generation: int, stretch: Stretch) -> None:
        """Records a completed step.

        Args:
            end: time at which the next step could begin. A checkpoint belongs to the step after which it was written.
            stretch: stretch of this rank, up to this step.
        """
        if self._file is None:
            return
        with self._giving_up():
            if self._bytes > LARGEST:
                self._file.close()
                self._path.replace(self._older)
                self._open()
            times = f'"step": {step}, "start": {start!r}, "end": {end!r}, "generation": {generation}'
            so_far = f'"began": {stretch.began!r}, "steps": {stretch.steps}'
            spent = f'"checkpoint": {stretch.checkpoint!r}, "again": {stretch.again!r}, "missing": {stretch.missing!r}'
            self._write(f"{self._who}, {times}, {so_far}, {spent}}}\n")

    def close(self) -> None:
        with self._giving_up():
            if self._file is not None:
                self._file.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Stops the log if it cannot be written, since training is more important."""
        try:
            yield
        except OSError as error:
            log.warning("step log %s not written, training goes on without it: %s", self._path, error.strerror)
            file, self._file = self._file, None
            with suppress(OSError):
                if file is not None:
                    file.close()

    def _open(self) -> None:
        self._file = self._path.open("a", buffering=1)
        self._bytes = self._path.stat().st_size

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._bytes += self._file.write(line)


def _stretch(line: dict[str, Any]) -> Stretch:
    began, ended, checkpoint, again = (float(line[name]) for name in ("began", "end", "checkpoint", "again"))
    missing = float(line.get("missing", 0.0))  # an earlier version did not write it
    if not 0 <= began <= ended < math.inf or not (0 <= checkpoint < math.inf and 0 <= again < math.inf and 0 <= missing <= 1):
        raise ValueError("no stretch has such times")
    return Stretch(began=began, ended=ended, steps=int(line["steps"]), checkpoint=checkpoint, again=again, missing=missing)


def _end(path: Path) -> bytes:
    """Returns some of the last lines. The first of them may be torn."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LONGEST_LINE, 0))
        return file.read()
