"""Faults that `REKINDLE_INJECT` adds to the checks of the ranks on a node."""

import threading

import torch

from rekindle_training.injection import Injection
from rekindle_training.stress.codes import MEMORY, MESSAGES, PRODUCTS
from rekindle_training.stress.verdict import Disturb

WRONG = {"wrong-product": PRODUCTS, "wrong-message": MESSAGES, "wrong-memory": MEMORY}
HANGS = "check-hangs"


def disturbance(op: int, node: str) -> Disturb:
    faults = Injection.read().on_nodes.get(node, ())
    if HANGS in faults:
        return hang
    return flip if any(WRONG[fault] == op for fault in faults) else leave


def leave(_: torch.Tensor) -> None:
    pass


def flip(tensor: torch.Tensor) -> None:
    """Flips one bit of the tensor."""
    tensor.view(-1)[-1:].view(torch.uint8)[0] ^= 1


def hang(_: torch.Tensor) -> None:
    threading.Event().wait()
