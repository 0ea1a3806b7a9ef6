"""What no replica has: a rank's random number generators and its data position. A successor and a checkpoint take them along."""

import pickle
import random
import sys
from typing import Any

import torch

from rekindle_training.adapter.state import Stateful


def capture(data: Stateful | None, module: str | None) -> bytes:
    """`module` is the accelerator's (`cuda`, `npu`), if there is one."""
    own: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        own["numpy"] = sys.modules["numpy"].random.get_state()
    if module is not None:
        own[module] = getattr(torch, module).get_rng_state()
    if data is not None:
        own["data"] = data.state_dict()
    return pickle.dumps(own)


def restore(content: bytes, data: Stateful | None, module: str | None, *, random_numbers: bool = True) -> None:
    own = pickle.loads(content)  # written by a rank of the same job
    if data is not None:
        data.load_state_dict(own["data"])
    if not random_numbers:
        return
    random.setstate(own["python"])
    torch.set_rng_state(own["torch"])
    if "numpy" in own:
        import numpy as np

        np.random.set_state(own["numpy"])
    if module is not None:
        getattr(torch, module).set_rng_state(own[module])
