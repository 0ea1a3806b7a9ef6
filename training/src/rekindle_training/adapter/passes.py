"""Places in a turn of the training loop: a forward pass, an evaluation, the end of a backward pass.

Used where a fault is injected, and where a drill notes what a script does.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from rekindle_training.injection import BACKWARD, EVALUATION, FORWARD

Reached = Callable[[str, Any], None]
"""Called with the place, and after a backward pass with the tensors from which it began."""


def watch(modules: Iterable[torch.nn.Module], reached: Reached) -> None:
    """Calls `reached` at the beginning of each forward pass of these modules, and at the end of each backward pass.

    A forward pass in evaluation mode, or without gradients, is an evaluation.
    """

    def before(module: torch.nn.Module, _inputs: object) -> None:
        reached(FORWARD if module.training and torch.is_grad_enabled() else EVALUATION, None)

    for module in modules:
        module.register_forward_pre_hook(before)
    backward = torch.autograd.backward

    @wraps(backward)
    def noted(tensors: Any, *args: Any, **options: Any) -> None:
        backward(tensors, *args, **options)
        reached(BACKWARD, tensors)

    torch.autograd.backward = noted  # `Tensor.backward` calls it by this name
