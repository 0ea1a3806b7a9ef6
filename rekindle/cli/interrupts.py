"""Handles the interruption of a command that has started processes: Ctrl-C, SIGTERM, or a closed terminal."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def on_interrupt(told: Callable[[], object]) -> None:
    """Calls `told` at each interrupt from now on. SIGHUP stays ignored under `nohup`."""
    for number in SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, told)


@contextmanager
def interruptible() -> Iterator[None]:
    """Cancels the block at any of these signals, so that everything that it has begun is undone."""
    this = asyncio.current_task()
    assert this is not None
    on_interrupt(this.cancel)
    try:
        yield
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
