"""Kills the processes that the pods of a local cluster left behind, when the cluster has ended for any reason.

Started by the cluster as a separate file with `-I`, so that it needs nothing but the standard library:
`guardian.py NAME=VALUE` waits for the end of its stdin, then kills every process that carries this variable in its environment.
"""

import os
import signal
import sys
import time

SETTLED = 3
"""Number of consecutive scans without a process: one that was just being forked appears in the next scan."""


def carriers(variable: str) -> list[int]:
    """Returns the ids of processes that were started with `NAME=VALUE` in their environment. Zombies have none."""
    wanted = variable.encode()
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _carries(entry, wanted)]  # noqa: PTH208


def _carries(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as environment:  # noqa: PTH123
            return wanted in environment.read().split(b"\0")
    except OSError:
        return False


def kill_carriers(variable: str) -> int:
    """Kills these processes, and returns how many there were."""
    found = carriers(variable)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(found)


def main(variable: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    empty = 0
    while empty < SETTLED:
        empty = 0 if kill_carriers(variable) else empty + 1
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
