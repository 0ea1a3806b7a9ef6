"""Result of each run of a drill, compared with the undisturbed run."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rekindle_training.launcher.drill import output
from rekindle_training.launcher.drill.runs import Ended
from rekindle_training.launcher.drill.traces import Difference, Trace, compare, has_other_parameters, read


class Result(StrEnum):
    TRAINS = "trains"
    """The undisturbed run ended well."""
    SURVIVES = "survives"
    DIVERGED = "DIVERGED"
    """The exit code is 0, but the state differs from the undisturbed run."""
    FAILS = "fails"
    HANGS = "hangs"
    NOT_TRIED = "not tried"
    NOT_COMPARABLE = "not comparable"
    """Two undisturbed runs differ as well."""


BAD = (Result.DIVERGED, Result.FAILS, Result.HANGS, Result.NOT_COMPARABLE)


@dataclass
class Finding:
    case: str
    """Name of the case: one of `options.CASES`, or `undisturbed`."""
    title: str
    """Description of the fault."""
    result: Result
    seconds: float = 0.0
    code: int | None = None
    difference: Difference | None = None
    other_end: bool = False
    """True if its loop ended after another step than the undisturbed one."""
    other_parameters: bool = False
    """True if its parameters differ at its end, or after its last step if it did not reach the end."""
    said: list[str] = field(default_factory=list)
    """Messages of the program, as it printed them."""
    note: str = ""
    advice: list[str] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        return self.result in BAD

    @property
    def words(self) -> str:
        """Summary for the table."""
        difference = [str(self.difference)] if self.difference is not None else []
        return "; ".join([*self.said, *difference, *([self.note] if self.note else [])])


def judge(case: str, title: str, ended: Ended, undisturbed: Trace, sources: Path) -> Finding:
    """Compares a run with the undisturbed one.

    Args:
        sources: folder of the script's own files.
    """
    trace = read(ended.trace)
    difference = compare(undisturbed, trace)
    finding = Finding(case, title, Result.SURVIVES, ended.seconds, ended.code, difference)
    finding.other_parameters = has_other_parameters(undisturbed, trace)
    if ended.hung:
        finding.result, finding.said = Result.HANGS, output.where_it_hangs(ended.output, sources)
    elif ended.code or ended.problem:
        finding.result, finding.said = Result.FAILS, output.reasons(ended.output, sources)
        if ended.problem:
            said = [reason for reason in finding.said if reason not in ended.problem]
            finding.said = said if any(ended.problem in reason for reason in said) else [ended.problem, *said]
    elif trace.furthest != undisturbed.furthest:
        finding.result, finding.other_parameters, finding.other_end = Result.DIVERGED, True, True
        finding.note = f"it ended after step {trace.furthest}, undisturbed after step {undisturbed.furthest}"
    elif difference is not None:
        finding.result = Result.DIVERGED
    elif output.RESTARTED in ended.output:
        finding.note = "by a restart of all ranks from the checkpoint"
    return finding
