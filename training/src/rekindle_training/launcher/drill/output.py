"""Output of a run: the reasons of a failure, and the lines in which its ranks hung."""

import re
from pathlib import Path

from rekindle_training.injection import INJECTED

MOST_REASONS = 3
LONGEST = 600
TAIL = 15
"""Number of output lines that are shown for a run that failed without a fault."""
LOST_IN = "a rank lost another one in"
ENDED_EARLY = "training ended before its last step"
RESTARTED = "all ranks restarted from the last checkpoint"

_GIVEN_UP = re.compile(
    r"(?:training given up|training not repaired|training start failed).*?reason=(.*)|hot switch stopped reason=(.*could not.*)"
)
_COULD_NOT_JOIN = re.compile(r"rank join failed rank=\d+ reason=(.*)")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*?(?P<error>\S.*)$", re.MULTILINE)
_REFUSED = re.compile(r"^(?:rekindle: .*|\S+: error: .*)$", re.MULTILINE)
_AROUND = re.compile(r"^rank \d+: |^(?:\w+\.)*(?:Refused|ReplicasDiffer|\w+Error): | \(\S+, line \d+(?:, in \S+)?\)$")
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""Prefix with which torch marks the output of a rank at its end."""
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "lost the other ranks",
    "other ranks lost",
    "StepRepeated",
    "CancelledError",
)
_DUMPED = re.compile(r"^(?:Current thread|Thread) 0x\w+.*\n((?:  File .*\n?)+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)


def reasons(text: str, sources: Path) -> list[str]:
    """Returns the program's messages about its failure, the most informative first. An injected fault is left out."""
    text = _RANK.sub("", text)
    found = [match[1] or match[2] for match in _GIVEN_UP.finditer(text)]
    errors = [_with_line(match["error"], match[0], sources) for match in _TRACEBACK.finditer(text)]
    errors = [error for error in errors if INJECTED not in error]
    found += [match[0] for match in _REFUSED.finditer(text)]
    found += sorted(errors, key=is_loss)
    found += [match[1] for match in _COULD_NOT_JOIN.finditer(text)]
    return [one[:LONGEST] for one in _without_repetition(found)][:MOST_REASONS]


def _without_repetition(found: list[str]) -> list[str]:
    """Leaves out words that another one contains: the manager, a rank and its traceback say the same reason."""
    cores = {words.strip(): _core(words) for words in found}
    shown: list[str] = []
    for words, core in cores.items():
        if not any(core in cores[other] or cores[other] in core for other in shown):
            shown.append(words)
    return shown


def _core(words: str) -> str:
    """Returns the words without the rank, the type of the error and the line of the script that stand around them."""
    return _AROUND.sub("", words.strip())


def is_loss(words: str) -> bool:
    """Returns whether a rank failed because it could not reach another one."""
    return any(lost in words for lost in (*_LOST, LOST_IN))


def _with_line(error: str, traceback: str, sources: Path) -> str:
    """Adds the innermost line of the script's own files. Of a lost connection nothing else matters."""
    frames = _own_frames(traceback, sources)
    if not frames:
        return error
    return f"{LOST_IN} {_where(frames[-1])}" if is_loss(error) else f"{error} ({_where(frames[-1])})"


def tail(text: str) -> list[str]:
    return text.rstrip().splitlines()[-TAIL:]


def where_it_hangs(text: str, sources: Path) -> list[str]:
    """Returns the lines of the script's own files in which threads stood when they were ended."""
    stacks = [_own_frames(stack, sources) for stack in _DUMPED.findall(text)]
    return list(dict.fromkeys(f"a rank stands in {_where(frames[0])}" for frames in stacks if frames))[:MOST_REASONS]


def _own_frames(text: str, sources: Path) -> list[tuple[str, str, str]]:
    return [frame for frame in _FRAME.findall(text) if Path(frame[0]).is_relative_to(sources) and "site-packages" not in frame[0]]


def _where(frame: tuple[str, str, str]) -> str:
    file, line, function = frame
    return f"{Path(file).name}, line {line}" + ("" if function == "<module>" else f", in {function}")
