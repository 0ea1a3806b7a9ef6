"""One JSON line for each completed step of each rank: the evidence of what ran where, and of what had to be run again."""

import json
import os
from pathlib import Path
from typing import IO

from rekindle_training.environment import RankEnvironment


class StepLog:
    """Appends to `steps/rank-00000.jsonl`; every process that is this rank, one after the other, writes to the same file."""

    def __init__(self, environment: RankEnvironment) -> None:
        self._file: IO[str] | None = None
        self._who = {
            "rank": environment.rank,
            "pid": os.getpid(),
            "pod": environment.pod,
            "pod_uid": environment.pod_uid,
            "node": environment.node,
        }
        if environment.job_dir is not None:
            self._path = environment.job_dir / "steps" / f"rank-{environment.rank:05d}.jsonl"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _mend(self._path)
            self._file = self._path.open("a", buffering=1)

    def last_step(self) -> int:
        """The last step that any process of this rank completed; 0 before the first. A torn line does not count."""
        return max((step for step in map(_step, self._lines()) if step is not None), default=0)

    def record(self, step: int, start: float, end: float, generation: int) -> None:
        """`end` is when the next step could have begun: a checkpoint belongs to the step behind which it was written."""
        if self._file is not None:
            self._file.write(json.dumps({**self._who, "step": step, "start": start, "end": end, "generation": generation}) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._file is not None else []


def _step(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _mend(path: Path) -> None:
    """Ends a line that a killed process left torn, so that the next one begins on its own."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        path.write_bytes(content + b"\n")
