"""A model that is wrapped in DistributedDataParallel, once, between the session and its loop: all ranks sum as before a fault."""

import pytest

from tests.training.standalone import Standalone, last_words
from tests.training.test_repair import at_places

BEFORE_AND_BEHIND_THE_FIRST_LAYOUT = "1:1:backward,2:2:backward,3:6:updated"
EVERYBODY = "0:5:beginning,1:5:beginning,2:5:beginning,3:5:beginning"


@pytest.mark.parametrize("kind", ["raise", "kill"])
@pytest.mark.parametrize(
    "options",
    at_places(
        "a model is wrapped with other options",
        as_most_do="",
        gradients_lie_in_the_buckets="gradient_as_bucket_view",
        parameters_without_a_part="find_unused_parameters",
        the_same_graph_in_each_step="static_graph gradient_as_bucket_view",
    ),
)
async def test_sums_are_those_of_an_undisturbed_run(options: str, kind: str, alone: Standalone, beside: Standalone) -> None:
    """Sums are equal to the bit on survivors and replacements, before and after the first layout of the buckets that DDP finds
    itself."""
    printed = await alone.run("--spares=1", KIND=kind, FAULTS=BEFORE_AND_BEHIND_THE_FIRST_LAYOUT, WRAP=options)
    assert printed.count("repaired step=") == 3
    assert last_words(printed) == last_words(await beside.run(WRAP=options))


@pytest.mark.same_path("DDP's buckets are carried")
async def test_a_checkpoint_has_the_layout_of_the_buckets(alone: Standalone, beside: Standalone) -> None:
    """Ranks that begin again at a checkpoint sum as training has summed before it."""
    printed = await alone.run("--max-restarts=1", KIND="kill", FAULTS=EVERYBODY, EVERY="3", WRAP="")
    assert "all ranks restarted from the last checkpoint" in printed
    assert last_words(printed) == last_words(await beside.run(WRAP=""))


@pytest.mark.same_path("DDP's buckets are carried")
async def test_a_replacement_that_wraps_another_number_of_models_says_so(alone: Standalone) -> None:
    """A replacement reports the error at its loop, and does not wait there for sums that no other rank computes with it."""
    printed = await alone.run("--spares=1", code=1, KIND="kill", FAULTS="1:5:backward", WRAP="", REPLACEMENTS="bare")
    assert "RuntimeError: 1 models more are wrapped in DistributedDataParallel on the ranks that train" in printed
