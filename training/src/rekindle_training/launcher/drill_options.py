"""Flags of a drill, as `rekindle-train` reads them."""

import argparse
from dataclasses import dataclass
from pathlib import Path

EXCEPTION, KILL, KILL_FIRST, KILL_UPDATED, KILL_LAST, STOP, EVALUATION, SWITCH, RESTART = CASES = (
    "exception",
    "kill",
    "kill-rank-0",
    "kill-updated",
    "kill-last",
    "stop",
    "evaluation",
    "switch",
    "restart",
)
STEPS = 8
FEWEST_STEPS = 4
"""Minimum number of steps: two before the checkpoint, one with a fault, and one after it."""
SECONDS = 600
RANKS = 2


@dataclass(frozen=True)
class Drill:
    steps: int
    cases: tuple[str, ...]
    """Faults to try, in the order of `CASES`."""
    seconds: int
    """Time limit of the undisturbed run in seconds."""
    keep: Path | None
    """Folder for the files that the runs write. None: they are removed at the end."""
    json: bool


def read(given: argparse.Namespace) -> Drill | None:
    """Returns None where no drill is wanted.

    Raises:
        ValueError: a flag makes no sense; the message names it and what is accepted.
    """
    ours = {"steps": given.drill_steps, "cases": given.drill_cases, "seconds": given.drill_seconds, "keep": given.drill_keep}
    said = {name: value for name, value in {**ours, "output": given.drill_output}.items() if value is not None}
    if not given.drill:
        if said:
            raise ValueError(f"--drill-{min(said)} without --drill: it is a flag of a drill")
        return None
    _check(given)
    return Drill(
        steps=_number("--drill-steps", said.get("steps", str(STEPS)), FEWEST_STEPS),
        cases=_cases(said.get("cases", ",".join(CASES))),
        seconds=_number("--drill-seconds", said.get("seconds", str(SECONDS)), 1),
        keep=_folder(said["keep"]) if "keep" in said else None,
        json=_output(said.get("output", "text")) == "json",
    )


def _check(given: argparse.Namespace) -> None:
    if given.nnodes not in ("1", "1:1"):
        raise ValueError(f"--nnodes {given.nnodes}: a drill runs on one machine, accepted is --nnodes 1")
    if given.log_dir or given.redirects != "0":
        raise ValueError("--log-dir and --drill contradict each other: a drill keeps the output of its runs with --drill-keep")


def _number(flag: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{flag} {text}: accepted is a whole number from {least}")
    return int(text)


def _cases(text: str) -> tuple[str, ...]:
    named = text.split(",")
    if unknown := [case for case in named if case not in CASES]:
        raise ValueError(f"--drill-cases {text}: {unknown[0]!r} is no case; accepted are {', '.join(CASES)}, with commas")
    return tuple(case for case in CASES if case in named)


def _folder(text: str) -> Path:
    folder = Path(text).absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"--drill-keep {text}: accepted is a folder that is empty, or that does not exist")
    return folder


def _output(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError(f"--drill-output {text}: accepted are text and json")
    return text
