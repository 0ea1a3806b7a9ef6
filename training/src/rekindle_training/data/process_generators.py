"""Generators of random numbers of this process: those of Python, torch, numpy and the accelerator.

States are read twice in each step, so the state of a generator that has not moved is not read again.
"""

import ctypes
import hashlib
import pickle
import random
import struct
import sys
from typing import Any, NamedTuple

import torch


class States(NamedTuple):
    """States of all generators at one moment."""

    python: bytes
    torch: bytes
    numpy: bytes | None
    """State of numpy's generator. None: the process does not use numpy."""
    accelerator: bytes | None


def take(module: str | None) -> States:
    """Returns the states.

    Args:
        module: the accelerator's (`cuda`, `npu`), if there is one.
    """
    return States(
        _python(),
        _bytes(torch.default_generator.get_state()),
        _numpy() if "numpy" in sys.modules else None,
        None if module is None else _bytes(getattr(torch, module).get_rng_state()),
    )


def put(states: States, module: str | None) -> None:
    global _numpy_moved
    random.setstate(pickle.loads(states.python))
    torch.set_rng_state(_tensor(states.torch))
    if states.numpy is not None:
        import numpy as np

        np.random.set_state(pickle.loads(states.numpy))
        _numpy_moved = None  # a normal number drawn in advance is another one, beside the same twister
    if module is not None and states.accelerator is not None:
        getattr(torch, module).set_rng_state(_tensor(states.accelerator))


def derive(number: int, module: str | None) -> None:
    """Seeds all generators, each by its own state and a number. A generator that the script has not seeded differs each time."""
    random.seed(f"{number} {random.getstate()}")
    torch.default_generator.manual_seed(_mixed(number, _bytes(torch.default_generator.get_state())))
    if "numpy" in sys.modules:
        numpy: Any = sys.modules["numpy"].random
        if type(numpy.get_bit_generator()) is numpy.MT19937:  # no other one can be seeded in place
            numpy.seed(_mixed(number, repr(numpy.get_state(legacy=False)["state"]["key"].tolist()).encode()) % 2**32)
    if module is not None:
        accelerator = getattr(torch, module)
        accelerator.manual_seed(_mixed(number, _bytes(accelerator.get_rng_state())))


def _mixed(number: int, state: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"%d " % number + state).digest()[:8]) >> 1


# ---- generators whose state takes long to read: what they have in memory shows whether they moved

_WORDS = 624
"""Words of a Mersenne twister, of 32 bits each. The position lies beside them."""
_BYTES = 4 * (_WORDS + 1)

_Window = ctypes.c_char * _BYTES
"""Memory of a generator, read without a copy."""

_python_generator: Any = random._inst  # noqa: SLF001  # it has no other name
_python_window = _Window.from_address(id(_python_generator) + object.__basicsize__)
_python_moved: tuple[bytes, float | None] | None = None
_python_state = b""


def _python() -> bytes:
    global _python_moved, _python_state
    found = (_python_window.raw, _python_generator.gauss_next) if _CAN_PEEK else None
    if found is None or found != _python_moved:
        _python_moved, _python_state = found, pickle.dumps(random.getstate())
    return _python_state


def _python_has_its_twister_behind_its_head() -> bool:
    """Returns whether the generator's state is in memory as in CPython: the position, then the words.

    Reading it there is 30 times faster than Python's function.
    """
    _, (*words, position), _ = random.getstate()
    return sys.implementation.name == "cpython" and _python_window.raw == struct.pack(f"i{_WORDS}I", position, *words)


_CAN_PEEK = _python_has_its_twister_behind_its_head()

_numpy_generator: Any = None
_numpy_window: Any = None
"""Memory of the state of `_numpy_generator`. None: its state lies elsewhere."""
_numpy_moved: bytes | None = None
_numpy_state = b""


def _numpy() -> bytes:
    """Returns numpy's state. All of it is read while a normal number was drawn in advance, since that is stored elsewhere."""
    global _numpy_generator, _numpy_window, _numpy_moved, _numpy_state
    numpy: Any = sys.modules["numpy"].random
    if (generator := numpy.get_bit_generator()) is not _numpy_generator:
        can_peek = type(generator) is numpy.MT19937
        _numpy_generator, _numpy_moved = generator, None
        _numpy_window = _Window.from_address(generator.ctypes.state_address) if can_peek else None
    found = None if _numpy_window is None else _numpy_window.raw
    if found is None or found != _numpy_moved:
        state = numpy.get_state(legacy=False)
        _numpy_moved, _numpy_state = None if state.get("has_gauss") else found, pickle.dumps(state)
    return _numpy_state


def _bytes(state: torch.Tensor) -> bytes:
    """Returns the bytes of a tensor in host memory."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
