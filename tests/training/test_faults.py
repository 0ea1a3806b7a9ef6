"""`make faults`, which writes the table of all faults, on one of them."""

import random
import re
from pathlib import Path

from benchmarks.faults import kinds, measure


def test_a_kind_of_fault_is_measured(tmp_path: Path) -> None:
    """The row of a fault has how many jobs went on, and how many ended like an undisturbed one."""
    kind = next(kind for kind in kinds() if kind.name == "kill -9 of the rank that hands its state over")
    row, right = measure(kind, 1, random.randrange(1000), tmp_path / "logs")
    assert right
    assert re.fullmatch(rf"\| {re.escape(kind.name)} \| 1 \| 1 \| 1 \| \d+\.\d+ \| \d+\.\d+ \|", row)
