"""Word that a rank says when all agree in a step, and what it means where ranks say different ones. Used by `step.py`."""

from enum import IntEnum

from rekindle_training.adapter.vote import Disagreement

_KINDS = 8
"""Bits of the word for the kind."""


class Kind(IntEnum):
    """Why a rank agrees; in words, of that rank."""

    UPDATE = 1
    """Its optimizer is going to update."""
    END = 2
    """Its step ends, and no optimizer has updated."""


class RanksDiffer(Exception):
    """Ranks do not do the same in a step. It ends training: a repetition would do no better."""


def word(step: int, kind: Kind) -> int:
    return step << _KINDS | kind


def explained(found: Disagreement) -> RanksDiffer:
    """Returns what the script did, in its terms."""
    said = {rank: (word >> _KINDS, word % (1 << _KINDS)) for rank, word in found.words.items()}
    (first, (step, _)), (second, (other_step, _)) = said.items()
    if step != other_step:
        return RanksDiffer(f"rank {first} is in step {step}, and rank {second} in step {other_step}")
    without = next(rank for rank, (_, kind) in said.items() if kind == Kind.END)
    updates = next(rank for rank in said if rank != without)
    return RanksDiffer(
        f"rank {without} leaves out its update in step {step}, and rank {updates} updates; in a step every rank calls "
        "optimizer.step() (or scaler.step(), or training.agree()), or none does"
    )
