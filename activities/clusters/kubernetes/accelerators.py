"""Extended resources that are accelerators in this installation. Used by `objects.py`, which counts ranks by them."""

from functools import cache
from typing import Any

from rekindle.model import accelerators
from rekindle.model.rules import is_like
from rekindle.settings import read_settings


def count(amounts: dict[str, Any]) -> int:
    """Returns how many accelerators are among these amounts of resources, by name."""
    return accelerators.count(amounts, is_accelerator)


@cache
def is_accelerator(resource: str) -> bool:
    """Returns whether a resource of this name is an accelerator, by the known names or by the setting `accelerators`."""
    return accelerators.is_known(resource) or any(is_like(resource, pattern) for pattern in read_settings().accelerators)
