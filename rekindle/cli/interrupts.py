"""Handles the interruption of a command that has started processes: Ctrl-C, SIGTERM, or a closed terminal."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def on_interrupt(told: Callable[[], object]) -> None:
    """Calls this at each interrupt from now on. `nohup` keeps its meaning."""
    for number in SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, told)


@contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt cancels the block, so that all it has begun is undone, whichever of the signals it was."""
    this = asyncio.current_task()
    assert this is not None
    on_interrupt(this.cancel)
    try:
        yield
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
