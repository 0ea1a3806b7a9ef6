"""Faults in rare moments: in the first steps of a recovery, in its meeting, before the first step, after the last one."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.training.job import children
from tests.training.processes import Zygote
from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("struck_twice.py"))

Finals = Callable[[], Awaitable[list[str]]]


@pytest.fixture(scope="module")
def found() -> list[str]:
    return []


@pytest.fixture
def undisturbed(tmp_path: Path, zygote: Zygote, found: list[str]) -> Finals:
    async def undisturbed() -> list[str]:
        if not found:
            found.extend(last_words(await Standalone(tmp_path / "undisturbed", zygote).run(script=SCRIPT)))
        return found

    return undisturbed


async def test_a_step_that_fails_while_another_rank_still_ends_the_last_is_repeated(
    alone: Standalone, undisturbed: Finals
) -> None:
    """The failed rank has completed the step that the repair waits for, and others have not."""
    strikes = "step 5:1:raise,step 6:3:raise"
    printed = await alone.run("--spares=1", script=SCRIPT, STRIKES=strikes, LAST="0:5")
    assert last_words(printed) == await undisturbed()
    assert printed.count("training goes on behind=") == 2


@pytest.mark.same_path("a second rank is lost while a replacement meets the others")
@pytest.mark.parametrize("second", ["0", "1", "3"])
async def test_who_is_lost_while_a_replacement_that_enters_early_meets_the_others_is_replaced(
    second: str, alone: Standalone, undisturbed: Finals
) -> None:
    """A replacement that enters early has no state yet, and says so."""
    strikes = f"step 5:1:kill,meeting 2:{second}:kill"
    printed = await alone.run("--spares=2", script=SCRIPT, STRIKES=strikes, ENTERS="early")
    assert last_words(printed) == await undisturbed()


async def test_a_replacement_that_has_its_state_when_the_rebuild_fails_is_not_the_beginning_of_a_job(alone: Standalone) -> None:
    """The next rebuild has no state to hand over."""
    strikes = "step 5:1:kill,telling:0:raise"
    printed = await alone.run("--spares=1", script=SCRIPT, STRIKES=strikes, TELLS="yes")
    assert len({line.split()[2] for line in last_words(printed)}) == 1
    assert "repaired" in printed


async def test_a_replacement_that_loses_the_manager_in_front_of_its_loop_is_not_replaced(
    alone: Standalone, undisturbed: Finals
) -> None:
    """The replacement stands there as the others do, with the state that it was given."""
    printed = await alone.run("--spares=1", script=SCRIPT, STRIKES="step 5:1:kill,comparing:1:lose")
    assert last_words(printed) == await undisturbed()
    assert printed.count("rank ended") == 1


async def test_a_rank_that_is_killed_before_the_loop_is_replaced(alone: Standalone, undisturbed: Finals) -> None:
    """The replacement uses the random numbers with which the script begins, since the killed rank had none of a step to leave."""
    printed = await alone.run("--spares=1", script=SCRIPT, STRIKES="begun:1:kill")
    assert last_words(printed) == await undisturbed()
    assert "spare assigned to a rank" in printed


async def test_a_rank_that_is_killed_before_the_loop_of_a_job_that_goes_on_is_replaced(
    tmp_path: Path, zygote: Zygote, alone: Standalone
) -> None:
    """The killed rank leaves what its checkpoint had for it."""
    expected = []
    for folder, strikes in (("undisturbed", ""), ("job", "begun:1:kill")):
        alone.folder = tmp_path / folder
        await alone.run(script=SCRIPT, STEPS="4", EVERY="4")
        (alone.folder / "output.log").unlink()
        expected.append(last_words(await alone.run("--spares=1", script=SCRIPT, EVERY="4", STRIKES=strikes)))
    assert expected[0] == expected[1]
    assert "resumed from its checkpoint behind=4" in (tmp_path / "undisturbed" / "output.log").read_text()


@pytest.mark.same_path("a rank is killed while a checkpoint is read")
@pytest.mark.parametrize("place", ["reading", "read"])
async def test_a_rank_that_is_killed_while_a_checkpoint_is_read_costs_no_restart(
    place: str, alone: Standalone, undisturbed: Finals
) -> None:
    """All ranks begin again if one is killed before all have read the checkpoint. A rank that is killed later has left its own
    state."""
    await alone.run(script=SCRIPT, STEPS="4", EVERY="4")
    (alone.folder / "output.log").unlink()
    printed = await alone.run("--spares=1", script=SCRIPT, EVERY="4", STRIKES=f"{place}:1:kill")
    assert last_words(printed) == await undisturbed()


async def test_who_leaves_the_loop_by_an_interruption_does_not_let_the_others_wait(alone: Standalone) -> None:
    """The others end with an error, since training is complete on some ranks only."""
    printed = await alone.run(code=1, script=SCRIPT, STRIKES="gradients 5:2:interrupt", CATCHES="and leaves")
    assert "training given up" in printed


async def test_a_job_of_which_all_is_lost_at_once_counts_its_restarts(alone: Standalone) -> None:
    """Restarts are counted also where the manager is lost with the ranks and its successor has seen no step."""
    job = await alone.start(script=SCRIPT, STEPS="100000")
    await alone.prints("progress report sent")
    (zygote,) = children(job.pid)
    for process in children(zygote):
        os.kill(process, signal.SIGKILL)
    assert await job.code() == 128 + signal.SIGKILL
    assert "all ranks restarted" not in alone.printed


@pytest.mark.parametrize("enters", ["early", "late"])
async def test_a_rank_that_is_killed_while_the_job_begins_costs_no_restart(
    enters: str, alone: Standalone, undisturbed: Finals
) -> None:
    """All ranks begin again, since nothing was trained yet, and the others do not end the job for it."""
    printed = await alone.run(script=SCRIPT, STRIKES="meeting 1:1:kill", ENTERS=enters)
    assert last_words(printed) == await undisturbed()
    assert "Traceback" not in printed


async def test_a_step_whose_interruption_is_caught_is_repeated(alone: Standalone, undisturbed: Finals) -> None:
    """An interruption that is caught is repeated like a failure, since this rank has not updated."""
    printed = await alone.run(script=SCRIPT, STRIKES="gradients 5:2:interrupt", CATCHES="yes")
    assert last_words(printed) == await undisturbed()
    assert "KeyboardInterrupt" in printed


async def test_a_script_that_catches_the_loss_of_another_rank_repeats_its_step(alone: Standalone, beside: Standalone) -> None:
    """A repeated step may draw other numbers than its first try, which the script had left out in the middle of its pass."""
    script = str(Path(__file__).with_name("scripts").joinpath("catching.py"))
    printed = await alone.run(script=script, ranks=2, FAILS="yes")
    assert "left out: " in printed
    assert last_words(printed) == last_words(await beside.run(script=script, ranks=2))


async def test_failures_behind_the_end_of_training_are_the_exit_code(alone: Standalone) -> None:
    """The exit code is that of the failures also where all ranks fail at once and the manager has seen training complete."""
    printed = await alone.run(code=1, script=SCRIPT, STEPS="1", FAILS="yes")
    assert "training is complete" in printed


@pytest.mark.same_path("a checkpoint is damaged")
@pytest.mark.parametrize("damage", ["common", "*.own", "*.distcp", ".metadata"])
async def test_a_damaged_checkpoint_leads_to_the_one_before(
    damage: str, tmp_path: Path, alone: Standalone, undisturbed: Finals
) -> None:
    """All ranks read the same earlier checkpoint, and the log says which one cannot be read."""
    await alone.run(script=SCRIPT, STEPS="6", EVERY="2")
    newest = alone.folder / "checkpoints" / "step-00000006"
    for file in newest.glob(damage):
        file.write_bytes(file.read_bytes()[:5])
    (alone.folder / "output.log").unlink()
    printed = await alone.run(script=SCRIPT, EVERY="2")
    assert last_words(printed) == await undisturbed()
    assert f"{newest}: rank " in printed
    assert "the one after step 4 is read" in printed
    names = {entry.name for entry in (alone.folder / "checkpoints").iterdir()}
    assert names == {"step-00000006", "step-00000006.damaged", "step-00000008"}


async def test_a_checkpoint_that_nobody_can_read_ends_the_job(alone: Standalone) -> None:
    """A job does not begin again over a checkpoint that cannot be read."""
    await alone.run(script=SCRIPT, STEPS="2", EVERY="2")
    (alone.folder / "checkpoints" / "step-00000002" / "common").write_bytes(b"")
    printed = await alone.run(code=1, script=SCRIPT, EVERY="2")
    assert "could not start: CheckpointUnreadable" in printed
