"""Words that ranks exchange when all agree in a step, and the meaning of different words. Used by `step.py`."""

from enum import IntEnum

from rekindle_training.adapter.vote import Disagreement

_KINDS, _GATHERS = 8, 1 << 7
"""Number of bits of the word for the kind, and the bit among them for a step that adds to gradients."""


class Kind(IntEnum):
    """Reason why a rank takes part in an agreement."""

    UPDATE = 1
    """The rank's optimizer is about to update."""
    END = 2
    """The rank's step ends, and no optimizer has updated."""


def word(step: int, kind: Kind, *, gathers: bool = False) -> int:
    """Args:
    gathers: this step, unlike those before it, adds to the gradients of the step before.
    """
    return step << _KINDS | gathers * _GATHERS | kind


def explained(found: Disagreement) -> str:
    """Returns a description of the script's error, in terms of the script."""
    said = {rank: (word >> _KINDS, word % _GATHERS) for rank, word in found.words.items()}
    (first, (step, kind)), (second, (other_step, other_kind)) = said.items()
    if step != other_step:
        return f"rank {first} is in step {step}, and rank {second} in step {other_step}"
    if kind == other_kind:
        return (
            f"one of ranks {first} and {second} adds to the gradients of step {step - 1} in step {step}, and the other does not"
        )
    without = next(rank for rank, (_, kind) in said.items() if kind == Kind.END)
    updates = next(rank for rank in said if rank != without)
    return (
        f"rank {without} leaves out its update in step {step}, and rank {updates} updates; in a step every rank calls "
        "optimizer.step() (or scaler.step(), or training.agree()), or none does"
    )
