"""Agents that scripts bring along. Rekindle's launcher starts and ends the ranks, so that there is no place for them."""

from typing import Any, NoReturn


def init_taskd_agent(config: Any = None, cls: Any = None) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("init_taskd_agent")


def start_taskd_agent() -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("start_taskd_agent")


def register_func(operator: Any, func: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("register_func")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(f"{name}: rekindle-train starts the ranks in the place of an agent; start the script with torchrun")
