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
    """True if the terminal sent the signal to all its foreground processes, including the ranks."""


def listen(events: "queue.SimpleQueue[Any]", numbers: Collection[int]) -> None:
    """Puts a `Signalled` into `events` for each of these signals from now on.

    Signals that the parent process has set to be ignored, for example `nohup`, are left out. Called while the process has
    only one thread. It cannot be undone.
    """
    heard = {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)

    def wait() -> None:
        while True:
            found = signal.sigwaitinfo(heard)
            events.put(Signalled(found.si_signo, found.si_code == _SI_KERNEL))

    if heard:
        threading.Thread(target=wait, daemon=True).start()
