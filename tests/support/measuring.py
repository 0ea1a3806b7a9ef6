"""Of a process that forks: its children write down what they covered, not once more what it had covered before."""

import os

from coverage import Coverage


def only_own_lines() -> None:
    """Is called in a child, or handed down to all children by `in_children`. What a process inherited takes longer to write than
    what a short one has to say."""
    if (measured := Coverage.current()) and measured._collector:
        measured._collector._clear_data()  # coverage has no other name for it


def in_children() -> None:
    os.register_at_fork(after_in_child=only_own_lines)
