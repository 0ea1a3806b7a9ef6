"""A loss that the script reports is looked at in the first step after a recovery, which counts only if it is finite."""

import math
from typing import Any

import pytest
import torch

from rekindle_training.adapter.reported_loss import Finite, ReportedLoss, problem
from tests.training.dialogue import fault, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.standalone import SCRIPT, Standalone, last_words

KILLED: dict[str, Any] = {"KIND": "kill", "FAULTS": "1:5:backward"}
NOT_PROVED = "the loss of rank 2 is not finite in the first step after a recovery"


async def test_a_recovery_whose_first_loss_is_not_finite_does_not_count(job: Job, gateway: GatewayPeer) -> None:
    """The control plane learns the reason, and is offered no other repair and no save of this state."""
    job.script, job.arguments = SCRIPT, []
    job.environment |= {**KILLED, "LOSS": "after=2"}
    await job.start()
    assert await fault(gateway) == {"1": "1"}
    await gateway.in_place(1)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("recover", 406)
    assert NOT_PROVED in info
    assert await opened(gateway, uuid="attempt-2") == ["exit"]


async def test_a_job_alone_begins_again_at_its_checkpoint(alone: Standalone) -> None:
    """Training ends as it does without a fault: the state with which the recovery went on is not used."""
    undisturbed = last_words(await Standalone(alone.folder.parent / "undisturbed", alone.zygote).run(EVERY="2", LOSS="none=0"))
    printed = await alone.run("--max-restarts=1", **KILLED, EVERY="2", LOSS="after=2")
    assert NOT_PROVED in printed
    assert "all ranks restarted from the last checkpoint" in printed
    assert last_words(printed) == undisturbed


@pytest.mark.parametrize("loss", ["none=0", "before=2,after=2", "before=0,after=2"])
async def test_what_was_so_before_does_not_end_a_recovery(alone: Standalone, loss: str) -> None:
    """A script whose loss is not finite without a fault, on any rank, is recovered as if it reported none."""
    printed = await alone.run(**KILLED, LOSS=loss)
    assert "is not finite" not in printed
    assert "repaired" in printed


@pytest.mark.parametrize(
    ("losses", "broken"),
    [
        ([Finite(before=True, now=True), Finite(before=None, now=False)], 1),
        ([Finite(before=True, now=False), None], 0),
        ([Finite(before=None, now=False), Finite(before=None, now=True)], None),
        ([Finite(before=False, now=False), Finite(before=True, now=True)], None),
        ([Finite(before=True, now=None), Finite(before=True, now=True)], None),
        ([None, None], None),
    ],
    ids=["a new process", "a rank that stayed", "nobody knows before", "not finite before", "not reported now", "never reported"],
)
def test_losses_are_judged_together(losses: list[Finite | None], broken: int | None) -> None:
    """A process that is new knows no loss from before the recovery, and others do."""
    words = problem(losses)
    assert f"rank {broken} " in words if broken is not None else not words


@pytest.mark.parametrize("loss", [math.nan, math.inf, torch.tensor(math.nan), torch.tensor([1.0, -math.inf])])
def test_any_loss_of_a_step_counts(loss: Any) -> None:
    """A step may have several losses, of which one is not finite."""
    reported = ReportedLoss()
    reported.report(1)
    reported.step_is_done(counts=True)
    for one in (0.5, loss, torch.tensor(2.0)):
        reported.report(one)
    assert reported.finite() == Finite(before=True, now=False)


def test_a_step_that_is_repeated_or_not_judged_leaves_the_loss_before_it() -> None:
    """A second fault in the first step after a recovery makes nothing of that step the measure for the next one."""
    reported = ReportedLoss()
    reported.report(1.0)
    reported.step_is_done(counts=True)
    reported.report(math.nan)
    reported.drop()
    assert reported.finite() == Finite(before=True, now=None)
    reported.report(math.nan)
    reported.step_is_done(counts=False)
    assert reported.finite() == Finite(before=True, now=None)


def test_a_loss_is_the_number_that_it_was() -> None:
    """The script may use its tensor again, as where a graph of a device is replayed."""
    reported, loss = ReportedLoss(), torch.tensor(1.0)
    reported.report(loss)
    loss.fill_(math.nan)
    assert reported.finite().now


def test_finite_losses_of_half_precision_have_a_finite_sum() -> None:
    """A sum above 65504 is none that a half holds: losses of tokens, or of micro-batches."""
    for losses in ([torch.full((4096,), 20.0, dtype=torch.float16)], [torch.tensor(4000.0, dtype=torch.float16)] * 20):
        reported = ReportedLoss()
        for loss in losses:
            reported.report(loss)
        assert reported.finite().now


@pytest.mark.parametrize("loss", ["0.5", None, True, [0.5]])
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    """The message names the argument and what is accepted."""
    with pytest.raises(
        TypeError, match=rf"report_loss\(loss\): {type(loss).__name__} is not accepted; give a tensor or a number"
    ):
        ReportedLoss().report(loss)
