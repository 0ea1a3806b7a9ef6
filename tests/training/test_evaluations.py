"""Evaluations of the script's own, registered by `training.every`, leave no trace in training."""

import json
from pathlib import Path

from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("evaluated.py"))


async def test_a_repeated_evaluation_leaves_statistics_as_they_were(alone: Standalone, beside: Standalone) -> None:
    """A rank that is killed in an evaluation through DistributedDataParallel ends with the buffers of an undisturbed run."""
    kill = json.dumps([{"fault": "kill", "rank": 1, "step": 4, "place": "evaluation"}])
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, REKINDLE_INJECT=kill)
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2))
