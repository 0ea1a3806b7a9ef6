"""Random numbers of data. They are apart from those of a step, and the same when a batch is loaded again."""

import hashlib
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from rekindle_training.data import process_generators

_DEEPEST, _LONGEST, _MOST = 6, 1000, 10_000
"""Limits of the search for generators: attributes of attributes, elements of one collection, objects in all."""
_PLAIN = (str, bytes, int, float, complex, type(None), torch.Tensor, type, ModuleType, BuiltinFunctionType)


class Held(NamedTuple):
    """Generator that an object of the script holds."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]
    thing: Any


def mixed(*parts: int | str) -> int:
    """Returns a seed that depends on all parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


def seed_all(number: int, held: Iterable[Held]) -> None:
    """Seeds the generators of torch, Python and numpy in this process, and those that are held."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
    for generator in held:
        generator.seed(number)


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seeds the generators of this process, and puts them back at the end."""
    with kept_apart(()):
        seed_all(seed, ())
        yield


@contextmanager
def kept_apart(held: Sequence[Held]) -> Iterator[None]:
    """Puts the generators of this process, and those that are held, back at the end."""
    before, theirs = process_generators.take(None), [generator.get() for generator in held]
    try:
        yield
    finally:
        process_generators.put(before, None)
        for generator, state in zip(held, theirs, strict=True):
            generator.put(state)


class Start:
    """Generators that decide about the order of an epoch, with their states from its beginning."""

    def __init__(self, *roots: object, without: object = None) -> None:
        self._roots, self._without = roots, without
        self._held: list[Held] | None = None
        self._epoch: int | None = None
        self._first = b""
        self.state = b""
        """States from the beginning of the epoch; empty before the first one."""

    def load(self, state: bytes, epoch: int) -> None:
        self.state = state
        self._epoch = epoch if state else None

    def begin(self, epoch: int) -> None:
        """Puts the generators back to the beginning of this epoch, or notes that it begins now.

        Raises:
            RuntimeError: the states are those of other generators.
        """
        if self._held is None:
            self._held = held_by(*self._roots, without=self._without)
        if self._epoch != epoch:
            now = pickle.dumps([generator.get() for generator in self._held])
            self._first = self._first or now
            self._epoch, self.state = epoch, now if self.state else self._first
        states = pickle.loads(self.state)
        if len(states) != len(self._held):
            raise RuntimeError(
                f"batches(loader): the state is that of {len(states)} generators, and the loader and its sampler hold "
                f"{len(self._held)}; the script has changed"
            )
        for generator, state in zip(self._held, states, strict=True):
            generator.put(state)


def held_by(*roots: object, without: object = None) -> list[Held]:
    """Finds generators in the attributes of objects, in collections and objects there, and among what functions use.

    Args:
        roots: where to look.
        without: an object that is not looked into.
    """
    found: list[Held] = []
    seen = {id(without)}
    waiting = deque((root, 0) for root in roots)
    while waiting and len(seen) < _MOST:
        thing, depth = waiting.popleft()
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen.add(id(thing))
        if generator := _generator(thing):
            found.append(generator)
        elif depth < _DEEPEST:
            waiting.extend((part, depth + 1) for part in _parts(thing))
    return found


def _generator(thing: Any) -> Held | None:
    if isinstance(thing, torch.Generator):
        return Held(partial(_bytes, thing), partial(_put_bytes, thing), thing.manual_seed, thing)
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return Held(thing.getstate, thing.setstate, thing.seed, thing)
    numpy: Any = sys.modules.get("numpy")
    if numpy and isinstance(thing, numpy.random.RandomState):
        return Held(partial(thing.get_state, legacy=False), thing.set_state, lambda number: thing.seed(number % 2**32), thing)
    if numpy and isinstance(thing, numpy.random.Generator):
        bits = thing.bit_generator
        put = partial(setattr, bits, "state")
        return Held(lambda: bits.state, put, lambda number: put(type(bits)(number).state), thing)
    return None


def _bytes(generator: torch.Generator) -> bytes:
    """Returns bytes that are equal if states are. Pickled tensors are not."""
    return generator.get_state().numpy().tobytes()


def _put_bytes(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, Mapping):
        return thing.values() if len(thing) <= _LONGEST else ()
    if isinstance(thing, list | tuple | set | frozenset | deque):
        return thing if len(thing) <= _LONGEST else ()
    if isinstance(thing, partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    if isinstance(thing, MethodType):
        return (thing.__self__, thing.__func__)
    if isinstance(thing, FunctionType):
        return [*(cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()), *_globals(thing)]
    kinds = (kind for kind in type(thing).__mro__ if _is_the_scripts(kind))
    methods = (getattr(method, "__func__", method) for kind in kinds for method in vars(kind).values())
    return [*getattr(thing, "__dict__", {}).values(), *(method for method in methods if isinstance(method, FunctionType))]


def _is_the_scripts(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in {"builtins", "collections", "numpy", "torch", "torchdata", "typing"}


def _globals(function: FunctionType) -> Iterator[object]:
    """Yields the generators and functions of its module that a function may use."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) or _generator(value):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
