"""Signals to the launcher become events of the pod, which passes them on to its processes."""

import queue
import signal
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_SI_KERNEL = 0x80


@dataclass(frozen=True)
class Signalled:
    number: int
    from_terminal: bool
    """It went to all processes of the terminal's foreground, ranks among them."""


def listen(events: "queue.SimpleQueue[Any]", numbers: Collection[int]) -> None:
    """From here on each of these signals is put there as a `Signalled`, but for those that whoever started this process has it
    ignore, as `nohup` does. Called while the process has one thread, and never taken back."""
    heard = {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)

    def wait() -> None:
        while True:
            found = signal.sigwaitinfo(heard)
            events.put(Signalled(found.si_signo, found.si_code == _SI_KERNEL))

    if heard:
        threading.Thread(target=wait, daemon=True).start()
