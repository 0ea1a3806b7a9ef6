"""Coverage of processes that fork: children write only the lines that they covered themselves."""

import os

from coverage import Coverage


def only_own_lines() -> None:
    """Discards the coverage data that a child inherited. Called in each child, or installed for all of them by `in_children`.

    Writing the inherited data would take longer than a short child runs.
    """
    if (measured := Coverage.current()) and measured._collector:
        measured._collector._clear_data()  # coverage has no other name for it


def in_children() -> None:
    os.register_at_fork(after_in_child=only_own_lines)
