"""A state of every kind of value."""

from collections import Counter, defaultdict, deque
from typing import Any, NamedTuple

import numpy as np
import torch

from rekindle_training.adapter.digest import CHUNK


class Pair(NamedTuple):
    first: Any
    second: Any


STATE = {
    "words": torch.arange(2 * CHUNK + 3, dtype=torch.int64),
    "odd": torch.arange(5, dtype=torch.bfloat16)[1:],
    "array": np.arange(4),
    "bytes": b"abc",
    "set": {3, 1},
    "pair": Pair(1, (2.0, None)),
    "counts": Counter("abba"),
    "defaults": defaultdict(list, {"a": [1]}),
    "last": deque([torch.ones(2), 1], 3),
    "scalar": np.float32(1),
    "empty": {},
}
