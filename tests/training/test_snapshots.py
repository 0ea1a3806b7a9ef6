"""Snapshots in memory of shards that one rank alone holds: a rank that is lost costs a few steps, and not those since the
checkpoint."""

from pathlib import Path

import pytest

from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("sharded.py"))
UNIQUE = {"UNIQUE": "accepted"}
EVERY = {"REKINDLE_SNAPSHOT_EVERY": "3"}


@pytest.mark.parametrize("faults", ["1:6:behind", "0:5:beginning", "3:7:updated"])
async def test_a_killed_rank_goes_back_to_a_snapshot(faults: str, alone: Standalone, beside: Standalone) -> None:
    """All ranks go back to the newest step of which each has a snapshot, and end like an undisturbed run."""
    printed = await alone.run(script=SCRIPT, KIND="kill", FAULTS=faults, **UNIQUE, **EVERY)
    step = int(faults.split(":")[1])
    assert f"training goes on behind={(step - 1) // 3 * 3} " in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, **UNIQUE))
