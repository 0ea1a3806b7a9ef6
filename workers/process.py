"""What every process of the control plane does alike: it runs until it is told to stop, and says when it is ready."""

import asyncio
import signal
import sys


def stop_requested() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def ready(line: str) -> None:
    """One line on stdout for whoever started the process; everything else goes to the log."""
    sys.stdout.write(f"ready {line}\n")
    sys.stdout.flush()
