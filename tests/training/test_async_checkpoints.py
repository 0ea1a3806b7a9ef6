"""Asynchronous checkpoints of torch's own beside a session."""

import re
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("async_saved.py"))


async def test_a_job_that_saves_asynchronously_outlives_a_rank(alone: Standalone, beside: Standalone) -> None:
    """The save that was going on is lost; later ones go through the group that has taken the place of the old one."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, KILL="yes")
    assert "repaired step=" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2))
    for folder in (alone.folder, beside.folder):
        dcp_to_torch_save(folder / "saved-8", folder / "saved.pt")
    saved = [torch.load(folder / "saved.pt") for folder in (alone.folder, beside.folder)]
    assert saved[0]["step"] == saved[1]["step"] == 8
    assert torch.equal(saved[0]["model"]["weight"], saved[1]["model"]["weight"])


async def test_an_error_of_a_save_before_the_recovery_is_shown_as_what_it_is(alone: Standalone) -> None:
    """A script that waits for the save in each try of the next step gets its own error. The job ends by it."""
    printed = await alone.run("--spares=1", code=1, script=SCRIPT, ranks=2, KILL="yes", KEEPS="yes")
    words = r"training did not get beyond step 4 in 3 tries: rank [01]: kept from before the last recovery: RuntimeError: "
    assert re.search(words, printed)
