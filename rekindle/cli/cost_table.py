"""Table of what each mode of the ladder would cost, as a part of `rekindle explain JOB`."""

from rekindle.cli.output import print_columns
from rekindle.cli.terminal import console
from rekindle.model.mode import Mode
from rekindle.policy.modes.costs import GIB, Cost, Costs

UNKNOWN = "unknown"
HEADER = ("mode", "possible", "training stands", "steps again", "time lost", "accelerator seconds", "based on")


def show_costs(found: Costs) -> None:
    """Prints the estimated costs, and what they are based on."""
    _say(f"what each mode would cost now, as an estimate: {', '.join(_measured(found))}")
    print_columns(HEADER, [_cells(cost) for cost in found.modes])
    _say(f"a {Mode.DYING_GASP} adds its time to the restart that follows, which then executes no step again")


def _measured(found: Costs) -> tuple[str, ...]:
    """Returns what the estimates are computed from."""
    step = UNKNOWN if found.step_seconds is None else f"{found.step_seconds:.3f} s (mean of {found.step_samples})"
    state = UNKNOWN if found.state_bytes is None else f"{found.state_bytes / GIB:.3f} GiB"
    return (f"ranks: {found.ranks}", f"a step: {step}", f"state of a rank: {state}", f"standbys ready: {found.standbys}")


def _cells(cost: Cost) -> tuple[str, ...]:
    return (
        cost.mode,
        "no" if cost.against else "yes",
        _number(cost.stands, " s"),
        UNKNOWN if cost.steps is None else f"{cost.steps:.1f}".removesuffix(".0"),
        _number(cost.seconds, " s"),
        _number(cost.accelerator_seconds),
        "; ".join(_basis(cost)),
    )


def _basis(cost: Cost) -> list[str]:
    spread = f", from {cost.least:.2f} to {cost.most:.2f} s" if cost.samples > 1 else ""
    steps = f"steps: {cost.steps_source}" if cost.steps_source else ""
    failed = f"failed: {cost.failed}" if cost.failed else ""
    return [words for words in (f"{cost.source}{spread}", steps, failed) if words]


def _number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:.2f}{unit}"


def _say(words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)
