"""Ranks have several shares each: those of a missing rank are spread over all others, with the same result bit for bit."""

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from torch.utils.data import DataLoader, IterableDataset

from rekindle_training.data import process_generators
from rekindle_training.data.shares import shares
from tests.training.dialogue import offers, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote
from tests.training.test_elastic import PODS, SCRIPT, Whole, at_random, finals, is_as_whole, lost, samples, smaller

SETTINGS = {"PARTS": "3"}


@pytest.fixture
def elastic(job: Job) -> Job:
    """Prepares a job of four pods with one rank each, whose number of ranks may change."""
    job.script, job.arguments, job.pods = SCRIPT, [], PODS
    job.environment |= SETTINGS
    job.slow_down(1500)
    return job


async def undisturbed(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote, **settings: str) -> Whole:
    """Returns how an undisturbed run of the script ended, and the samples of each of its steps."""
    peer = GatewayPeer()  # type: ignore[abstract]
    await peer.start()
    job = Job(tmp_path_factory.mktemp("whole"), zygote, peer, {**SETTINGS, **settings}, [], SCRIPT, pods=PODS)
    await job.start()
    assert await job.codes() == {0}, job.outputs()
    await peer.stop()
    return finals(job), samples(job)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Whole:
    """Returns how an undisturbed run ended."""
    return await undisturbed(tmp_path_factory, zygote)


def batches_of(elastic: Job, step: int, rank: int) -> int:
    """Returns the number of batches that a rank has drawn in a step."""
    log = elastic.folder / "samples" / f"{rank}.jsonl"
    return sum(f'"step": {step},' in line for line in log.read_text().splitlines())


async def said(elastic: Job, words: str) -> None:
    """Waits until a process of the job has said something."""
    async with asyncio.timeout(60):
        while words not in elastic.outputs():
            await asyncio.sleep(0.05)


async def test_the_shares_of_a_lost_rank_are_spread_over_all_others(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """Each of three ranks carries four of twelve shares, and none carries six. A second rank is lost, and both come back."""
    await elastic.start()
    await elastic.reached(3)
    await smaller(elastic, gateway, 3)
    await elastic.reached(elastic.steps(0)[-1]["step"] + 2)
    before = elastic.steps(0)[-1]["step"]
    assert [batches_of(elastic, before, rank) for rank in range(3)] == [4, 4, 4]
    await lost(elastic, gateway, 0, uuid="attempt-2", number=2)
    await gateway.smaller(0, uuid="attempt-2")
    assert (await status(gateway, 2))[2].endswith("with 2 of 4 ranks")
    for number, pod in enumerate((3, 0), 3):
        await elastic.worker(pod)
        await gateway.larger(pod, uuid=f"attempt-{number}")
        assert (await status(gateway, number))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_one_rank_carries_all_shares(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """Three of four ranks are lost, rank 0 among them, and the last one trains on with all shares."""
    await elastic.start()
    await elastic.reached(3)
    await smaller(elastic, gateway, 0, 3, 1)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 0, 1, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"VIEWS": "yes", "PARTS": "2"},
        {"COUNTS": "yes", "VIEWS": "yes", "ZERO_LAST": "yes"},
        {"BRANCH": "yes"},
        {"WORKERS": "1", "PARTS": "2"},
        {"MICRO": "2", "VIEWS": "yes"},
        {"TWICE": "yes", "COUNTS": "yes"},
        {"MICRO": "2", "TWICE": "yes", "BRANCH": "yes"},
    ],
    ids=[
        "views of buckets",
        "counted passes",
        "branches",
        "loader workers",
        "micro-batches",
        "two passes",
        "two passes of micro-batches",
    ],
)
async def test_gradients_of_a_group_are_added_up_in_its_order(
    settings: dict[str, str],
    elastic: Job,
    gateway: GatewayPeer,
    zygote: Zygote,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A share is summed up by itself, then those of a rank at full size. Whoever computes them, the bits are the same."""
    whole = await undisturbed(tmp_path_factory, zygote, **settings)
    elastic.environment |= settings
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 0)
    await elastic.worker(0)
    await gateway.larger(0)
    assert (await status(gateway, 2))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_sums_of_one_model_stay_while_those_of_another_are_made(
    elastic: Job, gateway: GatewayPeer, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each model has a loop over the batches. The last share of rank 1 in it is one that follows others in the sum."""
    settings = {"SECOND": "yes", "PARTS": "2"}
    whole = await undisturbed(tmp_path_factory, zygote, **settings)
    elastic.environment |= settings
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


@pytest.mark.parametrize(("place", "zero_last"), [("between", ""), ("between", "yes"), ("updated", "")])
async def test_a_rank_with_several_shares_is_replaced_in_its_pod(
    place: str, zero_last: str, elastic: Job, gateway: GatewayPeer, whole: Whole
) -> None:
    """The new process goes on with all shares: at full size, and with those of a missing rank. Other ranks drop what they
    have added up in the step, wherever the script drops its gradients."""
    elastic.environment["FAULTS"] = f"1:4:{place},0:12:{place}"
    if zero_last:
        elastic.environment["ZERO_LAST"] = zero_last
    await elastic.start()
    await elastic.reached(2, rank=2)
    await gateway.report("ReportProcessFault", 1)
    await opened(gateway, 1, uuid="attempt-1", number=1)
    await gateway.in_place(1, uuid="attempt-1")
    assert (await status(gateway))[:2] == ("recover", 0)
    await lost(elastic, gateway, 3, uuid="attempt-2", number=2)
    await gateway.smaller(3, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("downgrade", 0)
    elastic.hurry()
    await gateway.report("ReportProcessFault", 3)
    await opened(gateway, 0, uuid="attempt-3", number=3)
    await gateway.in_place(0, uuid="attempt-3")
    assert (await status(gateway, 3))[:2] == ("recover", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


async def test_a_backup_pod_takes_all_shares_of_a_rank(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The pod takes the shares at full size, and from what another pod keeps while a rank is missing."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await lost(elastic, gateway, 2)
    await gateway.elsewhere(2)
    await elastic.backup(2)
    assert (await status(gateway))[:2] == ("recover", 0)
    await lost(elastic, gateway, 3, uuid="attempt-2", number=2)
    await gateway.smaller(3, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("downgrade", 0)
    await lost(elastic, gateway, 0, uuid="attempt-3", number=3)
    await gateway.elsewhere(0, uuid="attempt-3")
    await elastic.backup(0)
    assert (await status(gateway, 3))[:2] == ("recover", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


async def moved(elastic: Job, gateway: GatewayPeer, pod: int, number: int) -> None:
    """Moves the rank of a pod to a backup, by a hot switch."""
    uuid = f"attempt-{number}"
    await gateway.hot_switch(pod, uuid=uuid)
    await gateway.order("hot-switch", "new pod running", uuid=uuid)
    assert await offers(gateway, number) == ["migration"]
    await gateway.migrate(uuid)
    assert (await status(gateway, number))[:2] == ("migration", 0)
    await elastic.lose(f"worker-{pod}")


async def test_a_rank_moves_with_all_its_shares(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """A hot switch takes them to the backup, at full size and while a rank is missing."""
    await elastic.start(2)
    await elastic.reached(3, rank=1)
    await moved(elastic, gateway, 2, 1)
    await elastic.lose("worker-3")
    await gateway.report("ReportProcessFault")
    await gateway.stop_train("attempt-2")
    await gateway.announce(3, uuid="attempt-2")
    assert "downgrade" in await offers(gateway, 2)
    await gateway.smaller(3, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("downgrade", 0)
    await elastic.backup(0)
    await moved(elastic, gateway, 0, 3)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


async def test_a_return_that_fails_leaves_shares_where_they_were(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The new process ends when it has taken its shares back. A manager that follows learns from the ranks who carries what."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3, 2)
    elastic.environment["FAULTS"] = "3:*:joined"
    await elastic.worker(3)
    await gateway.larger(3, uuid="attempt-3")
    strategy, code, info = await status(gateway, 3)
    assert (strategy, code) == ("upgrade", 406)
    assert "with 2 of 4 ranks" in info
    elastic.environment["FAULTS"] = ""
    elastic.started["manager"].kill()
    await elastic.started["manager"].code()
    await elastic.manager()
    await gateway.until(lambda: gateway.subscriptions == 2)
    await elastic.worker(3)
    await gateway.larger(3, uuid="attempt-4")
    strategy, code, info = await status(gateway, 4)
    assert (strategy, code) == ("upgrade", 0)
    assert info.endswith("with 3 of 4 ranks")
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole, 2)


async def test_ranks_that_are_left_save_all_shares(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """A last checkpoint has the state of each share, those of the missing rank and of the lost one too. The job begins again."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    await lost(elastic, gateway, 0, uuid="attempt-2", number=2)
    await gateway.dump(uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("dump", 0)
    await elastic.end()
    elastic.generation += 1
    elastic.hurry()
    await elastic.start()
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)


@pytest.mark.parametrize("step", [4, 12], ids=["without a checkpoint", "from a checkpoint"])
async def test_a_job_that_begins_again_has_the_same_shares(step: int, elastic: Job, whole: Whole) -> None:
    """Further shares begin with random numbers that follow from those of their rank. A checkpoint has the state of each share."""
    elastic.slow_down(300)
    await elastic.start()
    await elastic.reached(step)
    await elastic.end()
    elastic.generation += 1
    elastic.hurry()
    await elastic.start()
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)
    elastic.generation += 1
    elastic.environment["PARTS"] = "1"
    await elastic.start()
    await said(elastic, "written with shares(parts=3), and the session has shares(parts=1)")
    await elastic.end()


async def test_ranks_with_other_parts_are_refused(elastic: Job) -> None:
    """The message names both ranks, and what is accepted."""
    await elastic.manager()
    await elastic.worker(0)
    await elastic.printed("process registered")
    elastic.environment["PARTS"] = "2"
    await elastic.worker(1)
    await said(
        elastic, "rank 1: its data are shares(parts=2), and those of rank 0 are shares(parts=3); accepted is the same number"
    )
    await elastic.end()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"MICRO": "2", "SYNC": "yes"},
            "gradients are summed over ranks several times in one step: put all passes of a batch",
        ),
        (
            {"KEEPS": "bare"},
            "an optimizer updates parameters of no model that is wrapped in DistributedDataParallel",
        ),
        ({"KEEPS": "static"}, "DistributedDataParallel(static_graph=True) has to sum in its first pass"),
        ({"KEEPS": "next"}, "a backward pass is outside of `for batch in training.batches():`"),
        ({"KEEPS": "left"}, "the script updates before its loop over training.batches() has ended: update after that loop"),
        ({"KEEPS": "drops"}, "gradients of shares that are added up are dropped inside `for batch in training.batches():`"),
        ({"KEEPS": "gathers"}, "gradients are gathered over several steps: put all passes of one update into one `with step:`"),
    ],
    ids=[
        "sums of sums",
        "not wrapped",
        "a static graph",
        "a pass outside",
        "an update before the end",
        "dropped between shares",
        "gathered over steps",
    ],
)
async def test_what_would_not_be_the_mean_over_all_shares_is_refused(settings: dict[str, str], words: str, elastic: Job) -> None:
    """Training ends in its first steps, also at full size, and the message says what is accepted."""
    elastic.environment |= settings
    elastic.hurry()
    await elastic.start()
    await said(elastic, words)
    await elastic.end()


@pytest.mark.parametrize("parts", [0, -1, "3", 2.0, True])
def test_parts_that_are_no_number_from_1_are_refused(parts: Any) -> None:
    """The message says what is accepted."""
    with pytest.raises((TypeError, ValueError), match=rf"shares\(parts\): {parts!r} is not accepted; give a whole number from 1"):
        shares(lambda share, of: [share, of], parts)


class Stream(IterableDataset[int]):
    """Whole numbers, of which each share reads its own."""

    share = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.share, 8, 2))


def test_a_loader_of_another_share_is_refused() -> None:
    """The message names both shares. A stream that is read in this process has one position, whatever loaders it has."""
    one, stream = DataLoader(Stream(), num_workers=1), Stream()

    def of_stream(share: int, _of: int) -> DataLoader[int]:
        stream.share = share
        return DataLoader(stream)

    for make_loader, kind in ((lambda *_: one, "DataLoader"), (of_stream, "Stream")):
        data = shares(make_loader, 2)
        data.attach(0, 1)
        data.of(0)
        with pytest.raises(ValueError, match=f"the {kind} of share 1 is not accepted, since it is that of share 0"):
            data.of(1)
        data.close(())
        assert data.of(0) is data.of(0)
    apart = shares(lambda *_: DataLoader(stream, num_workers=1), 2)
    apart.attach(0, 1)
    assert apart.of(0) is not apart.of(1)


def test_further_shares_have_random_numbers_of_their_own() -> None:
    """The numbers of a share follow from the state of each generator, and that state is unchanged."""

    def drawn(share: int) -> tuple[float, ...]:
        before = process_generators.take(None)
        process_generators.derive(share, None)
        numbers = random.random(), torch.rand(()).item(), np.random.rand()
        process_generators.put(before, None)
        return numbers

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    first = drawn(4)
    assert drawn(4) == first
    assert all(one != other for one, other in zip(first, drawn(8), strict=True))
    torch.manual_seed(2)
    assert [one == other for one, other in zip(first, drawn(4), strict=True)] == [True, False, True]


@pytest.mark.parametrize("seed", range(10))
async def test_no_sample_is_lost_or_seen_twice_whatever_the_size(
    seed: int, elastic: Job, gateway: GatewayPeer, whole: Whole
) -> None:
    """Pods leave and come back at random. Each step has the samples of the undisturbed one, and the parameters are the same."""
    assert is_as_whole(elastic, whole, *await at_random(seed, elastic, gateway))
