"""What no replica has: a rank's random number generators and its data position. A successor and a checkpoint take them along."""

import pickle
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from rekindle_training.adapter.state import Stateful


@dataclass(frozen=True)
class Own:
    """As they were at one moment."""

    python: tuple[Any, ...]
    torch: bytes
    numpy: Any
    """None where the process does not use it."""
    accelerator: bytes | None
    data: bytes | None
    """Pickled: what `state_dict` gives may be the object's own, which moves on."""


def take(data: Stateful | None, module: str | None) -> Own:
    """`module` is the accelerator's (`cuda`, `npu`), if there is one."""
    return Own(
        python=random.getstate(),
        torch=_bytes(torch.get_rng_state()),
        numpy=sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None,
        accelerator=None if module is None else _bytes(getattr(torch, module).get_rng_state()),
        data=None if data is None else pickle.dumps(data.state_dict()),
    )


def put(own: Own, data: Stateful | None, module: str | None, *, random_numbers: bool = True) -> None:
    if data is not None and own.data is not None:
        data.load_state_dict(pickle.loads(own.data))  # pickled by a rank of the same job
    if not random_numbers:
        return
    random.setstate(own.python)
    torch.set_rng_state(_tensor(own.torch))
    if own.numpy is not None:
        import numpy as np

        np.random.set_state(own.numpy)
    if module is not None and own.accelerator is not None:
        getattr(torch, module).set_rng_state(_tensor(own.accelerator))


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
