"""Jobs with loaders of all kinds: a step that is repeated, a rank that is replaced and a restart get the same batches."""

from pathlib import Path

import pytest

from tests.training.scripts.plain import final
from tests.training.standalone import Standalone

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("batched.py"))
STRUCK = str(Path(__file__).with_name("scripts").joinpath("struck.py"))
RANKS = 2
FAULTS = {"raise": "1:2:raise,0:5:raise", "kill": "1:2:kill,0:5:kill", "restart": "0:8:kill,1:8:kill"}
"""Faults in the first epoch and after its end, when some loaders have loaded ahead."""
LOADERS = ["plain", "uneven", "shuffled", "stateful", "resumable", "stream", "nodes"]


@pytest.fixture(scope="session")
def found() -> dict[str, list[bytes]]:
    """Final parameters of undisturbed runs, by their loaders."""
    return {}


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=pytest.mark.same_path(over="fault")) for fault in FAULTS])
@pytest.mark.parametrize("loader", LOADERS)
async def test_training_ends_with_the_parameters_of_an_undisturbed_run(
    loader: str, fault: str, alone: Standalone, beside: Standalone, found: dict[str, list[bytes]]
) -> None:
    """Every loader gives each rank the batches that it gave before, with their random augmentations, to the bit."""
    flags = ["--max-restarts=1"] if fault == "restart" else ["--spares=1"]
    printed = await alone.run(*flags, STRUCK, script=SCRIPT, ranks=RANKS, LOADER=loader, FAULTS=FAULTS[fault])
    if loader not in found:
        await beside.run(script=SCRIPT, ranks=RANKS, LOADER=loader)
        found[loader] = final(beside.folder, RANKS)
    assert final(alone.folder, RANKS) == found[loader]
    assert ("all ranks restarted" in printed) if fault == "restart" else printed.count("repaired step=") == 2


async def test_a_loader_itself_is_refused_at_the_start(alone: Standalone) -> None:
    """The message says what to write, and no step is done."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=RANKS, LOADER="stateful", GIVEN="raw")
    assert "TypeError: session(data): StatefulDataLoader is not accepted" in printed
    assert "batches = rekindle_training.batches(loader)" in printed


async def test_a_loader_that_was_not_given_is_refused_in_the_second_step(alone: Standalone) -> None:
    """Nothing has failed before, and the message says what to write."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=RANKS, LOADER="plain", GIVEN="nothing")
    assert "a DataLoader gives batches in step after step, and was not given to the session" in printed
