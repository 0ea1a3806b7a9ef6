"""Modules whose code may write tensors in ways that torch does not count: by `.data`, or as an array that shares their memory."""

import inspect
import re
from functools import cache
from typing import Any

import torch

_WRITES = re.compile(r"\.data\b(?!\w*\()|\.numpy\(|from_dlpack")


def may_write_uncounted(module: torch.nn.Module) -> bool:
    """Returns whether the source of a module's class has such writes. Torch's own modules have none."""
    kind: Any = type(module)
    return not kind.__module__.startswith("torch.") and _may(kind)


@cache
def _may(kind: Any) -> bool:
    try:
        return _WRITES.search(inspect.getsource(kind)) is not None
    except (OSError, TypeError):  # it was made in an interpreter
        return False
