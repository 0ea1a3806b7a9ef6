"""Word that a rank says when all agree in a step, and what it means where ranks say different ones. Used by `step.py`."""

from enum import IntEnum

from rekindle_training.adapter.vote import Disagreement

_KINDS, _GATHERS = 8, 1 << 7
"""Bits of the word for the kind, and the one of them that says that gradients are added to."""


class Kind(IntEnum):
    """Why a rank agrees; in words, of that rank."""

    UPDATE = 1
    """Its optimizer is going to update."""
    END = 2
    """Its step ends, and no optimizer has updated."""


def word(step: int, kind: Kind, *, gathers: bool = False) -> int:
    """Args:
    gathers: this step, unlike those before it, adds to the gradients of the step before.
    """
    return step << _KINDS | gathers * _GATHERS | kind


def explained(found: Disagreement) -> str:
    """Returns what the script did, in its terms."""
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
