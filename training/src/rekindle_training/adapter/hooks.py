"""Functions that are called before methods of the script's objects."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def call_before_of(kind: Any, method: str, hook: Callable[..., None]) -> None:
    """Calls the hook before a method of each object of a class, with that object and the method's arguments."""
    called = getattr(kind, method)

    @wraps(called)
    def hooked(thing: Any, *args: Any, **keywords: Any) -> Any:
        hook(thing, *args, **keywords)
        return called(thing, *args, **keywords)

    setattr(kind, method, hooked)


def call_before(thing: Any, method: str, hook: Callable[..., None]) -> None:
    """Calls the hook before a method of one object, with that object and the method's arguments."""
    called = getattr(thing, method)

    @wraps(called)
    def hooked(*args: Any, **keywords: Any) -> Any:
        hook(thing, *args, **keywords)
        return called(*args, **keywords)

    setattr(thing, method, hooked)
