"""Cost of each mode of the ladder for a job as it is now, for people: an estimate, and what it is based on. Pure.

The ladder stays an order. No decision depends on these figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from rekindle.model.account import Bucket, Row
from rekindle.model.base import Value
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.account import spans
from rekindle.policy.modes import eligibility, faulty_ranks
from rekindle.policy.modes.chances import Chance
from rekindle.policy.modes.mode_table import LADDER, LAST
from rekindle.policy.training_sides.table import side_of

STEP = 0.060
"""Seconds of a step of the measured job, which its figures of faults contain. Source: docs/benchmarks.md."""


GIB = 2**30
COPY = 0.34
"""Seconds in which a GiB of state is handed over and verified. Source: docs/benchmarks.md, "State of a replacement"."""


class Measured(NamedTuple):
    """Standstill that a benchmark has measured."""

    seconds: float
    """Seconds of a recovery without the step that a fault interrupts."""

    row: str
    """Row of docs/benchmarks.md."""


@dataclass(frozen=True)
class Usual:
    """Usual cost of a mode, for a job that has not recovered by it yet."""

    stands: Measured | None
    """Time in which training stands. None: no benchmark has measured it."""

    standby: Measured | None = None
    """The same where standbys take over. None: training stands as long without them."""

    copies: bool = False
    """True if a process takes its state from another rank."""

    interrupts: bool = True
    """True if the mode follows a fault that interrupts a step. On average half a step is lost."""

    goes_back: bool = False
    """True if training goes back to its newest checkpoint."""


USUAL: dict[Mode, Usual] = {
    Mode.HOT_SWITCH: Usual(Measured(0.184, "hot switch to a new pod"), copies=True, interrupts=False),
    Mode.ONLINE_RETRY: Usual(Measured(0.253 - STEP, "want of memory in a step")),
    Mode.IN_PLACE: Usual(Measured(0.318 - STEP, "kill -9 of a rank, no spare waits"), copies=True),
    Mode.PROCESS_RESCHEDULING: Usual(
        Measured(4.056 - STEP, "a pod is lost, a new pod"),
        standby=Measured(0.402 - STEP, "a pod is lost, a standby"),
        copies=True,
    ),
    Mode.ELASTIC_TRAINING: Usual(None),
    Mode.DYING_GASP: Usual(Measured(7.369 - 6.442, "a dying gasp before a restart, of a small state"), interrupts=False),
    Mode.POD_RESCHEDULING: Usual(None, goes_back=True),
    Mode.JOB_RESCHEDULING: Usual(Measured(6.442 - STEP, "a pod is lost, a restart, of a small state"), goes_back=True),
}
"""Usual costs by mode. A new mode of the ladder is a row here.

Source: medians of docs/benchmarks.md, "A fault, with the whole control plane in the loop", of 2026-11-25 and 2026-11-28. They are
those of our own training side, with four ranks and the small GPT, on one machine. No figure of pod rescheduling is there. The
control plane does not know whether a spare process waits in a pod, so that of in-place recovery is the one without a spare. That
of a dying gasp is added to the restart that follows it.
"""


class Cost(Value):
    """Estimated cost of one mode."""

    mode: Mode
    against: tuple[str, ...] = ()
    """Reasons why the mode may not run now. Empty: it may, for at least one pod."""

    stands: float | None = None
    """Seconds in which training stands. None: unknown. Of a dying gasp, those that it adds to the restart that follows."""

    source: str = ""
    """Basis of `stands`, or the reason why it is unknown."""

    samples: int = 0
    """Number of the job's own recoveries on which `stands` is based. 0: it is based on a default."""

    least: float | None = None
    most: float | None = None
    """Shortest and longest standstill of these recoveries. None: there are none."""

    failed: int = 0
    """Number of times, in the job's history, that the mode ran and did not do what it is for."""

    steps: float | None = None
    """Completed steps that are executed again. None: unknown."""

    steps_source: str = ""
    """Basis of `steps`, or the reason why it is unknown. Empty: no step is executed again."""

    seconds: float | None = None
    """Seconds in which the job does not get on: it stands, or executes steps again. None: unknown."""

    accelerator_seconds: float | None = None
    """The same times the number of ranks. None: unknown."""


class Costs(Value):
    """Estimated costs of all modes, with the measurements that they are based on."""

    ranks: int
    step_seconds: float | None = None
    """Mean time of a step in the last long stretch, without checkpoints. None: unknown."""

    step_samples: int = 0
    """Number of steps on which that is based."""

    state_bytes: int | None = None
    """Bytes of the state that a replacement takes from another rank. None: unknown."""

    checkpoint_every: int | None = None
    """Steps between two checkpoints; 0: none is written. None: unknown."""

    standbys: int = 0
    """Number of standbys that are ready."""

    modes: tuple[Cost, ...] = ()
    """Costs in the order in which modes are tried."""


class Estimate(NamedTuple):
    """Figure with its basis. None: it is unknown, for that reason."""

    value: float | None
    source: str
    samples: Sequence[float] = ()


class Recovered(NamedTuple):
    """Recovery of the job that one mode has brought about."""

    verdict: Verdict
    stood: float | None
    """Seconds in which training stood. None: they are not known."""

    standbys: bool
    """True if only standbys took over."""

    saved: bool
    """True if a dying gasp has saved the state before."""


def costs(state: JobState, chances: Sequence[Chance]) -> Costs:
    """Returns the estimated costs of all modes, in the order in which they are tried.

    Args:
        chances: those of the job's modes now.
    """
    paced, holding = state.account.paced, state.account.holding
    step = (paced.step_seconds or None) if paced else None
    measured = Costs(
        ranks=state.account.ranks or state.job.ranks,
        step_seconds=step,
        step_samples=paced.steps if paced and step else 0,
        state_bytes=holding.state_bytes if holding else None,
        checkpoint_every=holding.checkpoint_every if holding else None,
        standbys=sum(one.runs and not one.wrong for one in state.standbys),
    )
    modes = (_cost(state, row.mode, measured) for row in LADDER)
    found = (cost.model_copy(update={"against": _against(cost.mode, chances)}) for cost in modes)
    return measured.model_copy(update={"modes": tuple(found)})


def _against(mode: Mode, chances: Sequence[Chance]) -> tuple[str, ...]:
    """Returns the reasons against a mode. One that is possible for some pod has none."""
    own = [chance.against for chance in chances if chance.mode is mode]
    return tuple(dict.fromkeys(reason for reasons in own for reason in reasons)) if all(own) else ()


def _cost(state: JobState, mode: Mode, measured: Costs) -> Cost:
    stands, steps = _stands(state, mode, measured), _steps(state, mode, measured)
    again = _times(steps.value, measured.step_seconds)
    seconds = None if stands.value is None or again is None else stands.value + again
    return Cost(
        mode=mode,
        stands=stands.value,
        source=stands.source,
        samples=len(stands.samples),
        least=min(stands.samples, default=None),
        most=max(stands.samples, default=None),
        failed=_failed(state.history, mode),
        steps=steps.value,
        steps_source=steps.source,
        seconds=seconds,
        accelerator_seconds=_times(seconds, measured.ranks),
    )


def _times(one: float | None, other: float | None) -> float | None:
    """Returns the product. Zero of something unknown is zero."""
    if one == 0:
        return 0.0
    return None if one is None or other is None else one * other


# ---- standstill


def _stands(state: JobState, mode: Mode, measured: Costs) -> Estimate:
    """Returns for how long training would stand: as in the job's own recoveries, as at its start, or as usual."""
    usual, side = USUAL[mode], side_of(state.job)
    stands_by = usual.standby is not None and _stand_by(state, measured)
    alike = (one for one in _own(state, mode) if usual.standby is None or one.standbys is stands_by)
    if stood := [one.stood for one in alike if one.stood]:
        return Estimate(median(stood), f"median of its own{' by standbys' if stands_by else ''}: {len(stood)}", stood)
    if mode is LAST.mode and (start_up := state.account.seconds.get(Bucket.START_UP)):
        return _interrupted(start_up, "its own start-up", usual, measured)
    if not side.reports_its_steps:
        return Estimate(None, f"it has not recovered so yet, and no benchmark has measured it with {side.label}")
    if usual.stands is None:
        return Estimate(None, "it has not recovered so yet, and no benchmark has measured it")
    found = usual.standby if usual.standby and stands_by else usual.stands
    seconds, row = _copied(found, measured) if usual.copies else found
    return _interrupted(seconds, f"benchmark: {row}", usual, measured)


def _copied(found: Measured, measured: Costs) -> Measured:
    """Returns the standstill with the copy of a state. That of the benchmark is too small to count."""
    if measured.state_bytes is None:
        return Measured(found.seconds, f"{found.row}, the copy of a small state")
    return Measured(found.seconds + COPY * measured.state_bytes / GIB, f"{found.row}, the copy of its state")


def _interrupted(seconds: float, source: str, usual: Usual, measured: Costs) -> Estimate:
    """Returns the standstill with the part of a step that the fault has interrupted."""
    if not usual.interrupts:
        return Estimate(seconds, source)
    if measured.step_seconds is None:
        return Estimate(None, "the time of a step, which a fault interrupts, was not reported yet")
    return Estimate(seconds + measured.step_seconds / 2, f"{source}, half a step")


def _stand_by(state: JobState, measured: Costs) -> bool:
    """Returns whether standbys can take over all faulty pods. Without a fault, one pod is taken to be faulty."""
    faults = eligibility.real_faults(state)
    pods = faulty_ranks.pods_of(state.job, (rank for fault in faults for rank in faulty_ranks.ranks_of(state.job, fault)))
    return measured.standbys >= max(len(pods), 1)


# ---- steps


def _steps(state: JobState, mode: Mode, measured: Costs) -> Estimate:
    """Returns how many completed steps would be executed again. Of a restart, those without a dying gasp before it."""
    if not USUAL[mode].goes_back:
        return Estimate(0.0, "")
    every, step = measured.checkpoint_every, state.account.step
    if every and step < every:
        return Estimate(float(step), "no checkpoint is written yet: those at the last report")
    if every:
        return Estimate((every - 1) / 2, f"a checkpoint every {every}")  # 0 to `every` - 1, all equally likely
    goes_back = (mode for mode in USUAL if USUAL[mode].goes_back)
    restarts = (one for mode in goes_back for one in _own(state, mode) if not one.saved)
    lost = [float(one.verdict.steps_lost) for one in restarts if one.verdict.steps_lost is not None]
    if lost:
        return Estimate(median(lost), f"median of its own: {len(lost)}", lost)
    if every == 0 and state.progress:
        since = max(step - state.progress.step + 1, 0)
        return Estimate(float(since), "no checkpoint is written: those since its start, at the last report")
    return Estimate(None, "it has not gone back to a checkpoint yet")


# ---- history of the job


def _own(state: JobState, mode: Mode) -> Iterable[Recovered]:
    """Returns the job's own recoveries by this mode alone. A dying gasp may come before a restart, whose time is without it."""
    rows = {row.number: row for row in state.account.rows}
    for incident in state.history:
        ladder = incident.ladder
        gasp = next((one for one in ladder if one.mode is Mode.DYING_GASP), None)
        if mode is Mode.DYING_GASP:
            if gasp and gasp.saved:
                yield Recovered(gasp, gasp.seconds, standbys=False, saved=True)
            continue
        alone = [one for one in ladder if one is not gasp]
        if len(alone) == 1 and alone[0].mode is mode and alone[0].outcome is Outcome.RECOVERED:
            row = rows.get(incident.number)
            stood = _stood(incident, row)
            own = stood - gasp.seconds if stood and gasp else stood
            yield Recovered(
                alone[0], own if own and own > 0 else None, standbys=bool(row and row.standbys), saved=bool(gasp and gasp.saved)
            )


def _stood(incident: Incident, row: Row | None) -> float | None:
    """Returns for how long training stood because of an incident, without waiting for a person. None: it is not known, as where
    no step has been reported since."""
    told = sum(seconds for bucket, seconds in row.stood.items() if bucket is not Bucket.PERSON) if row else 0.0
    if told:
        return told
    seen = spans.stood(incident)
    waited = sum((one.until - one.since).total_seconds() for one in incident.waits)
    return max(seen[1] - seen[0] - waited, 0.0) or None if seen else None


def _failed(history: Iterable[Incident], mode: Mode) -> int:
    """Returns how often a mode ran without doing what it is for. A dying gasp that has saved did what it is for."""
    ends = (Outcome.ESCALATE, Outcome.GIVEN_UP)
    verdicts = (verdict for incident in history for verdict in incident.ladder if verdict.mode is mode)
    return sum(verdict.outcome in ends and not verdict.saved for verdict in verdicts)
