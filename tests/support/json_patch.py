"""JSON patches (RFC 6902), as far as the admission webhook writes them."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """Returns a copy of a document after additions. The place of an addition must exist."""
    changed = copy.deepcopy(document)
    for operation in operations:
        assert set(operation) == {"op", "path", "value"}
        assert operation["op"] == "add"
        first, *steps = operation["path"].split("/")
        assert first == ""
        *outer, last = (step.replace("~1", "/").replace("~0", "~") for step in steps)
        inside = changed
        for step in outer:
            inside = inside[int(step)] if isinstance(inside, list) else inside[step]
        if isinstance(inside, list):
            inside.insert(len(inside) if last == "-" else int(last), copy.deepcopy(operation["value"]))
        else:
            inside[last] = copy.deepcopy(operation["value"])
    return changed
