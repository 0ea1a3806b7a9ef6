"""Values that objects of the script hold, read without executing code of theirs."""

from collections.abc import Mapping
from inspect import getattr_static
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None))
_NOTHING = object()


def value_at(thing: object, name: str) -> Any:
    """Returns an attribute of an object or a buffer, a variable around a function, or an item of a dictionary (`['a']`)."""
    if name[1:-1].isdigit():
        return cast(list[Any], thing)[int(name[1:-1])] if type(thing) in (list, tuple) else None
    if name.startswith("["):
        return dict.get(cast(dict[str, Any], thing), name[2:-2]) if issubclass(type(thing), dict) else None
    own = attributes(thing)
    return own[name] if name in own else _buffers(own).get(name, _of_class(thing, name, None))


def has(thing: object, name: str) -> bool:
    """Returns whether an object, or its class, has this attribute, buffer or item."""
    if name.startswith("["):
        return issubclass(type(thing), dict) and dict.__contains__(cast(dict[str, Any], thing), name[2:-2])
    own = attributes(thing)
    return name in own or name in _buffers(own) or _of_class(thing, name, _NOTHING) is not _NOTHING


def _buffers(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the buffers of a module, which are read as attributes are, among what it has itself."""
    found = own.get("_buffers")
    return found if isinstance(found, dict) else {}


def _of_class(thing: object, name: str, default: object) -> Any:
    """Returns the value that an object's class gives it, such as a first count; neither a method nor what a property would do."""
    found = getattr_static(type(thing), name, default)
    return found if isinstance(found, _PLAIN) else default


def attributes(thing: object) -> Mapping[str, Any]:
    """Returns what an object has itself, without what its class has; of a function, the variables around it.

    Asks the type what it is, as `__class__` may execute code of the object.
    """
    if issubclass(type(thing), type):
        return vars(thing)
    if type(thing) is FunctionType and thing.__closure__:
        return dict(zip(thing.__code__.co_freevars, map(_content, thing.__closure__), strict=True))
    given = (vars(kind)["__dict__"] for kind in type(thing).__mro__ if "__dict__" in vars(kind))
    if not all(isinstance(one, GetSetDescriptorType | MemberDescriptorType) for one in given):
        return {}  # a property: it would be executed
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is not assigned yet
        return None
