"""State that no replica has: a rank's random number generators and its data position.

Successors and checkpoints take it along.
"""

import pickle
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rekindle_training.adapter.state import Stateful
from rekindle_training.data import pickled, process_generators
from rekindle_training.data.process_generators import States


@dataclass(frozen=True)
class Own:
    """State that only one rank has, at one moment. All values are pickled, except the tensors' bytes."""

    python: bytes
    torch: bytes
    numpy: bytes | None
    """State of numpy's generator. None: the process does not use numpy."""
    accelerator: bytes | None
    data: bytes | None
    """Pickled state of the data position.

    The object that `state_dict` returns may change later. None: the session has no data.
    """
    described: bytes = b""
    """Description of the rank's own buffers, see `OwnBuffers.take`."""
    buffers: bytes = b""
    carried: tuple[tuple[int, "Own"], ...] = ()
    """The same of the shares that this rank carries besides its own one, by share, ascending."""

    @cached_property
    def pickled(self) -> bytes:
        """Returns the pickled state for another process. It is created once."""
        return pickle.dumps(self)

    def __reduce__(self) -> tuple[type["Own"], tuple[Any, ...]]:
        parts = self.python, self.torch, self.numpy, self.accelerator, self.data, self.described, self.buffers
        return Own, (*parts, self.carried) if self.carried else parts

    def of_share(self, share: int, holder: int) -> "Own | None":
        """Returns the part of a share, of which the holder is the rank whose state this is. None: it does not have the share."""
        return self.apart(holder).get(share)

    def apart(self, rank: int) -> dict[int, "Own"]:
        """Returns the part of this rank's own share, and of each share that it carries besides, by share."""
        return {rank: replace(self, carried=()), **dict(self.carried)} if self.carried else {rank: self}


def take(data: Stateful | None, module: str | None, buffers: tuple[bytes, bytes] = (b"", b"")) -> Own:
    """Returns the same object as before where nothing has moved.

    Args:
        module: the accelerator's (`cuda`, `npu`), if there is one.
        buffers: as `OwnBuffers.take` returns them.
    """
    global _moved, _own
    found = (
        *process_generators.take(module),
        None if data is None else pickled.dumps(data.state_dict()),
        *buffers,
    )
    if found != _moved:
        _moved, _own = found, Own(*found)
    return _own


_moved: tuple[bytes | None, ...] | None = None
_own: Own
"""State that was taken last."""


def put(own: Own, data: Stateful | None, module: str | None, *, random_numbers: bool = True) -> None:
    if data is not None and own.data is not None:
        data.load_state_dict(pickle.loads(own.data))  # pickled by a rank of the same job
    if random_numbers:
        process_generators.put(States(own.python, own.torch, own.numpy, own.accelerator), module)
