"""Entry point of the command `rekindle`, which takes seconds to load on a busy machine. Ctrl-C counts there, too."""

import os
import shutil
import signal
import sys
from typing import NoReturn

NARROWEST = 20
"""Columns. A help text is fitted to one or two without an end, and to none it is nothing."""


def main() -> NoReturn:
    """Ctrl-C ends it without a word while it loads, as it ends any program that has begun nothing."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it may be ignored
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _let_texts_fit()
    from rekindle.cli import app

    app.load(sys.argv[1:])
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app.main()


def _let_texts_fit() -> None:
    """A terminal that does not know its width says 0."""
    width = shutil.get_terminal_size().columns
    if width < NARROWEST or "COLUMNS" in os.environ:
        os.environ["COLUMNS"] = str(max(width, NARROWEST))
