"""Numbers of steps and epochs, which every file has as plain integers.

`pickle` and `copy` ask `__reduce__`. `torch.load` calls no function that it does not know, and PyYAML writes no type that it does
not know: so `torch.save` gets another pickle module by default, and PyYAML gets a representer for these types.
"""

import contextlib
import io
import pickle
from types import SimpleNamespace
from typing import Any

import torch


class Number(int):
    """Integer with more methods: the number of a step or of an epoch."""

    def __init_subclass__(cls) -> None:
        _tell_yaml(cls)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class _Found(Exception):
    """Signal that the object has a `Number` in it."""


class _Pickler(pickle.Pickler):
    """Pickler in C, which cannot write a `Number` as a plain integer. Where it meets one, a pickler in Python takes over."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        self._file, self._protocol, self._written = file, protocol, io.BytesIO()
        super().__init__(self._written, protocol)

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Number):
            raise _Found
        return NotImplemented

    def dump(self, thing: object) -> None:
        try:
            super().dump(thing)
        except _Found:
            slow = _SlowPickler(self._file, self._protocol)
            slow.persistent_id = self.persistent_id  # type: ignore[assignment]
            slow.dump(thing)
        else:
            self._file.write(self._written.getbuffer())


class _SlowPickler(pickle._Pickler):  # noqa: SLF001  # the only one of which a subclass can write another thing
    def save(self, thing: Any, save_persistent_id: bool = True) -> None:
        super().save(  # type: ignore[misc]  # typeshed does not know it
            int(thing) if isinstance(thing, Number) else thing, save_persistent_id
        )


def _tell_yaml(kind: type[Number]) -> None:
    with contextlib.suppress(ImportError):
        from yaml.representer import Representer, SafeRepresenter

        for representer in (SafeRepresenter, Representer):
            representer.add_representer(kind, SafeRepresenter.represent_int)


def _tell_torch() -> None:
    """Changes a default of `torch.save`, and not the function, which other modules may have imported under other names."""
    ours = SimpleNamespace(**{**vars(pickle), "Pickler": _Pickler})
    defaults = torch.serialization.save.__defaults__ or ()
    torch.serialization.save.__defaults__ = tuple(ours if value is pickle else value for value in defaults)


_tell_torch()
