"""What CPython needs to be spared. Called last by the command line and by every process that talks to Temporal."""

import time

LAST_WORDS = 0.02


def let_threads_end() -> None:
    """Waits a moment before the interpreter ends. A thread of Temporal's core that has just brought an answer still needs the
    interpreter's lock, and CPython aborts a process that ends before such a thread has had it (4 of 30 exits behind a failed
    connection). Goes with CPython 3.14, which lets such a thread hang, or when temporalio waits for its threads."""
    time.sleep(LAST_WORDS)
