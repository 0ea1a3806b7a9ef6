"""Runs one script undisturbed and then with one fault after the other. `report` is the entry point."""

import time
from collections.abc import Callable
from pathlib import Path

from rekindle_training.injection import BACKWARD, FORWARD, UPDATED
from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.drill import advice, findings, output, written
from rekindle_training.launcher.drill.findings import Finding, Result
from rekindle_training.launcher.drill.report import Bar, Report
from rekindle_training.launcher.drill.runs import Ended, Fault, Runs
from rekindle_training.launcher.drill.traces import Trace, compare, read
from rekindle_training.launcher.drill_options import (
    EVALUATION,
    EXCEPTION,
    FEWEST_STEPS,
    KILL,
    KILL_FIRST,
    KILL_LAST,
    KILL_UPDATED,
    RESTART,
    STOP,
    SWITCH,
    Drill,
)

UNDISTURBED = "undisturbed"
MOVED = 1
"""Rank that moves in a switch."""
FAULTS = {
    EXCEPTION: ("exception", 1, BACKWARD),
    KILL: ("kill", 1, FORWARD),
    KILL_FIRST: ("kill", 0, BACKWARD),
    KILL_UPDATED: ("kill", 1, UPDATED),
    KILL_LAST: ("kill", 1, UPDATED),
    STOP: ("stop", 1, BACKWARD),
}
"""Kinds of faults, their ranks, and the places in the step, by the names of the cases."""

Attempt = Callable[[], Ended]


class Trial:
    def __init__(self, arguments: Arguments, drill: Drill, folder: Path) -> None:
        self._drill, self._folder = drill, folder
        self._bar = Bar(len(drill.cases) + 1)
        self._runs = Runs(arguments, folder, drill.steps, self._bar.tick)
        script = arguments.command[0]
        self._sources = Path.cwd() if arguments.runs_as == "module" else Path(script).resolve().parent
        """Folder of the script's own files."""
        self._report = Report(script, arguments.nproc_per_node, drill.steps, folder=drill.keep)
        self._undisturbed = Trace()
        self._is_repeatable: bool | None = None
        """True if two undisturbed runs are the same. None: not tried yet."""

    def report(self) -> Report:
        try:
            if self._train():
                for case in self._drill.cases:
                    self._try(case)
        finally:
            self._bar.clear()
        return self._report

    # Undisturbed.

    def _train(self) -> bool:
        """Returns whether the script trains for as many steps as a drill needs."""
        self._bar.begin(UNDISTURBED)
        began = time.time()
        ended = self._runs.run(UNDISTURBED, limit=self._drill.seconds)
        self._report.files = written.since(began, Path.cwd(), self._folder)
        trace = self._undisturbed = read(ended.trace)
        early = ", where the script stopped early" if output.ENDED_EARLY in ended.output else ""
        finding = Finding(UNDISTURBED, UNDISTURBED, Result.TRAINS, ended.seconds, ended.code, note=f"{trace.steps} steps{early}")
        self._report.findings.append(finding)
        self._bar.end()
        if problem := self._problem(ended, trace):
            finding.result, finding.note = Result.HANGS if ended.hung else Result.FAILS, problem
            finding.said = output.reasons(ended.output, self._sources) or (output.tail(ended.output) if ended.code else [])
            finding.advice = [] if trace.given or ended.code or ended.hung else [advice.NO_SESSION]
            return False
        self._runs.trained = self._report.steps = trace.steps
        self._runs.expect(ended.seconds)
        return True

    def _problem(self, ended: Ended, trace: Trace) -> str:
        if ended.hung:
            return f"no end within {self._drill.seconds} s (--drill-seconds): give the script less data or smaller steps"
        if ended.code:
            return f"it ends with exit code {ended.code} without a fault, after step {trace.steps}"
        if not trace.given:
            return "no session began on any rank"
        if trace.steps < FEWEST_STEPS:
            return f"it ends after {trace.steps} steps; a drill needs {FEWEST_STEPS}"
        return ""

    # One fault.

    def _try(self, case: str) -> None:
        title, attempt = self._attempt(case)
        self._bar.begin(title)
        if attempt is None:
            steps = self._runs.trained
            note = f"no evaluation in {steps} steps: more --drill-steps, or an option of the script that evaluates sooner"
            finding = Finding(case, title, Result.NOT_TRIED, note=note)
        else:
            finding = findings.judge(case, title, ended := attempt(), self._undisturbed, self._sources)
            self._doubt(finding, ended)
            finding.advice = advice.advise(finding, self._undisturbed)
        self._report.findings.append(finding)
        self._bar.end()

    def _attempt(self, case: str) -> tuple[str, Attempt | None]:
        """Returns a description of the fault, and the function that tries it. None: the script has no place for the fault."""
        step, checkpoint = self._runs.struck, self._runs.checkpoint
        if case in FAULTS:
            kind, rank, place = FAULTS[case]
            step = self._struck_in(case)
            return f"{case}: rank {rank}, step {step}", self._strike(case, kind, rank, step, place)
        if case == EVALUATION:
            return self._in_evaluation()
        if case == SWITCH:
            title = f"{case}: rank {MOVED}, after step {checkpoint}"
            return title, lambda: self._runs.switch(case, MOVED, self._undisturbed.devices)
        return f"{case}: from step {checkpoint}", self._restart

    def _strike(self, case: str, kind: str, rank: int, step: int, place: str) -> Attempt:
        """Returns a run with a fault. If the script does not reach its place in the step, the fault gets another one."""
        reached = [one for one in (place, BACKWARD, FORWARD) if step in self._undisturbed.turns(one, rank)]
        fault: Fault = {"fault": kind, "rank": rank, "step": step, "place": reached[0] if reached else place}
        return lambda: self._runs.run(case, [fault])

    def _in_evaluation(self) -> tuple[str, Attempt | None]:
        """Takes the evaluation nearest to the other faults, and one in the first step only where there is no other."""
        found = [
            (step == 1, abs(step - self._runs.struck), -rank, step)
            for rank in self._undisturbed.ranks
            for step in self._undisturbed.turns(EVALUATION, rank)
            if step > 0
        ]
        if not found:
            return f"{EVALUATION}: rank killed", None
        _, _, last_rank, step = min(found)
        title = f"{EVALUATION}: rank {-last_rank} killed, step {step}"
        return title, self._strike(EVALUATION, "kill", -last_rank, step, EVALUATION)

    def _restart(self) -> Ended:
        """Runs two lives of a job, in one folder."""
        first = self._runs.run(RESTART, steps=self._runs.checkpoint)
        return first if first.code or first.hung else self._runs.run(RESTART)

    def _doubt(self, finding: Finding, ended: Ended) -> None:
        """Finds a fault that did not occur, and a script that computes otherwise in each run."""
        difference = finding.difference
        if finding.result is Result.SURVIVES and finding.case not in (SWITCH, RESTART) and not ended.was_struck():
            finding.result, finding.note = Result.NOT_TRIED, "the step has no forward and no backward pass that could be struck"
        if finding.result is not Result.DIVERGED:
            return
        if difference is not None and finding.case in (*FAULTS, RESTART) and difference.step < self._struck_in(finding.case):
            finding.result, finding.note = Result.NOT_COMPARABLE, advice.BEFORE
        elif not self._repeats():
            finding.result, finding.note = Result.NOT_COMPARABLE, advice.DIFFERS
        elif difference is None:
            return
        elif finding.case == SWITCH and difference.step <= self._runs.checkpoint:
            finding.result, finding.note = Result.NOT_TRIED, advice.POD

    def _struck_in(self, case: str) -> int:
        return self._runs.trained if case == KILL_LAST else self._runs.struck

    def _repeats(self) -> bool:
        """Returns whether another undisturbed run is the same as the first one."""
        if self._is_repeatable is None:
            again = read(self._runs.run("undisturbed-again").trace)
            self._is_repeatable = compare(self._undisturbed, again) is None
        return self._is_repeatable
