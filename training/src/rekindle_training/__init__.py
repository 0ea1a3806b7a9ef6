"""Gives a PyTorch job what it needs to be brought back after a fault: one context around the loop, one call at the step boundary.

    batches = rekindle_training.batches(loader)
    with rekindle_training.session(model, optimizer, state=[scheduler], data=batches) as training:
        for step in training.steps(total):
            with step:
                ...

Imported by the user's training script. Launcher and manager import the modules that they need, so that neither waits for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rekindle_training import environment, last_words

if TYPE_CHECKING:
    from rekindle_training.adapter.load import load
    from rekindle_training.adapter.loop import Training
    from rekindle_training.adapter.session import init_process_group, session
    from rekindle_training.data.batches import batches
    from rekindle_training.data.shares import shares

__all__ = ["Training", "batches", "init_process_group", "load", "session", "shares"]

if environment.has_launcher():  # and is a fresh program; a fork of the launcher knows when it has a rank
    last_words.watch()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = {"Training": "adapter.loop", "batches": "data.batches", "load": "adapter.load", "shares": "data.shares"}
    return getattr(import_module(f"{__name__}.{modules.get(name, 'adapter.session')}"), name)
