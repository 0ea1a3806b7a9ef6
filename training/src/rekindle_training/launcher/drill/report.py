"""Output of a drill for people and programs: a progress bar while it runs, then a table and a list, or one JSON object."""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekindle_training.launcher.drill.findings import Finding, Result

WIDEST = 130
NARROWEST = 60
BAR = 20
LOUD, QUIET = "\x1b[1;31m", "\x1b[0m"


class Bar:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._title = total, 0, ""
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def begin(self, title: str) -> None:
        self._title, self._began = title, time.monotonic()
        self.tick()

    def end(self) -> None:
        self._done += 1

    def tick(self) -> None:
        full = BAR * self._done // self._total
        seconds = time.monotonic() - self._began
        self._write(f"[{'#' * full}{'.' * (BAR - full)}] {self._done} of {self._total}, {self._title}, {seconds:.0f} s")

    def clear(self) -> None:
        self._write("")

    def _write(self, line: str) -> None:
        if self._shown:
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{line[: columns - 1]}")
            sys.stderr.flush()


@dataclass
class Report:
    script: str
    ranks: int
    steps: int
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    """Files that were written in the current folder while the script ran."""
    folder: Path | None = None
    """Folder in which the runs are kept."""

    @property
    def survives(self) -> bool:
        return not any(finding.is_bad for finding in self.findings)

    @property
    def diverged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.result is Result.DIVERGED]

    def as_json(self) -> str:
        found = {
            "script": self.script,
            "ranks": self.ranks,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "survives": self.survives,
            "diverged": bool(self.diverged),
            "cases": [_as_json(finding) for finding in self.findings],
            "files": self.files,
            "folder": str(self.folder) if self.folder else None,
        }
        return json.dumps(found)

    def as_text(self, *, loud: bool) -> str:
        """Args:
        loud: the terminal shows colours.
        """
        width = max(NARROWEST, min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST))
        lines = [f"{self.script}: {self.ranks} ranks, {self.steps} steps, {self.seconds:.0f} s", ""]
        for part in (_table(self.findings, width), self._changes(width), self._rest(width)):
            lines += [*(shown := list(part)), *([""] if shown else [])]
        if self.diverged:
            lines += _alarm(self.diverged, width, loud=loud)
        return "\n".join(lines).rstrip()

    def _changes(self, width: int) -> Iterator[str]:
        advice: dict[str, list[str]] = {}
        for finding in self.findings:
            for words in finding.advice:
                advice.setdefault(words, []).append(finding.case)
        if advice:
            yield "What to change:"
        for number, (words, titles) in enumerate(advice.items(), 1):
            yield from _wrapped(f"{number}. {words} ({', '.join(titles)})", width, "   ")

    def _rest(self, width: int) -> Iterator[str]:
        if self.files:
            shown = ", ".join(self.files)
            yield from _wrapped(f"Written in the current folder, which all runs share, while the script ran: {shown}.", width, "")
        if self.folder is not None:
            yield f"Traces and output of all runs: {self.folder}"
        if self.survives:
            tried = sum(finding.result is Result.SURVIVES for finding in self.findings)
            yield f"Survives {tried} of {tried} faults that were tried, with the bits of the undisturbed run."


def _as_json(finding: Finding) -> dict[str, Any]:
    difference = finding.difference
    first = None
    if difference is not None:
        cause = difference.cause
        first = {"step": difference.step, "rank": cause.rank, "object": cause.name, "is": cause.now, "undisturbed": cause.was}
    return {
        "case": finding.case,
        "title": finding.title,
        "result": finding.result.lower(),
        "exit_code": finding.code,
        "seconds": round(finding.seconds, 1),
        "difference": first,
        "other_parameters": finding.other_parameters,
        "said": finding.said,
        "note": finding.note,
        "advice": finding.advice,
    }


def _table(findings: Sequence[Finding], width: int) -> Iterator[str]:
    titles = max(len(finding.title) for finding in findings) + 2
    results = max(len(finding.result) for finding in findings) + 2
    left = titles + results
    yield f"{'fault':{titles}}{'result':{results}}what differs, or was said"
    for finding in findings:
        head = f"{finding.title:{titles}}{finding.result:{results}}"
        words = textwrap.wrap(finding.words, width - left, break_on_hyphens=False) or ["-"]
        yield head + words[0]
        yield from (" " * left + line for line in words[1:])


def _wrapped(words: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _alarm(diverged: Sequence[Finding], width: int, *, loud: bool) -> Iterator[str]:
    rule = "!" * width
    what = "OTHER PARAMETERS" if any(finding.other_parameters for finding in diverged) else "ANOTHER STATE"
    words = (
        f"DIVERGED: after {len(diverged)} of the faults training ended with exit code 0 and with {what}, without a word. "
        "Do not train with this script before it is changed."
    )
    lines = [rule, *textwrap.wrap(words, width), rule]
    yield from (f"{LOUD}{line}{QUIET}" if loud else line for line in lines)
