"""Training goes on with the ranks that are left, and takes missing ones back, with the same samples in the same steps."""

import asyncio
import json
import random
import re
import signal
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rekindle_training.injection import Injection
from rekindle_training.manager import coordinator, recovery
from rekindle_training.manager.coordinator import Coordinator
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.recovery import Kind, Order, Recovery
from rekindle_training.manager.reports import RETRY, Reports
from rekindle_wire.training_pb2 import Hello
from tests.training.dialogue import opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("elastic.py"))
PODS = 4

Finals = dict[int, tuple[str, str]]
"""Digests of the parameters and of the random numbers with which each rank ended."""
Whole = tuple[Finals, dict[int, list[list[int]]]]
"""How an undisturbed run ended, and the samples of each of its steps."""


@pytest.fixture
def elastic(job: Job) -> Job:
    """Prepares a job of four pods with one rank each, whose number of ranks may change."""
    job.script, job.arguments, job.pods = SCRIPT, [], PODS
    job.slow_down(1500)
    return job


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Whole:
    """Returns how an undisturbed run of the script ended, and the samples of each of its steps."""
    folder = tmp_path_factory.mktemp("whole")
    peer = GatewayPeer()  # type: ignore[abstract]
    await peer.start()
    job = Job(folder, zygote, peer, {}, [], SCRIPT, pods=PODS)
    await job.start()
    assert await job.codes() == {0}, job.outputs()
    await peer.stop()
    return finals(job), samples(job)


def finals(job: Job) -> Finals:
    return {int(rank): (model, numbers) for rank, model, numbers in re.findall(r"final (\d+) (\w+) (\w+)", job.outputs())}


def samples(job: Job) -> dict[int, list[list[int]]]:
    """Returns the batches of each step, each once: a repeated step has drawn the same again."""
    found: defaultdict[int, list[list[int]]] = defaultdict(list)
    for log in (job.folder / "samples").glob("*.jsonl"):
        for line in map(json.loads, log.read_text().splitlines()):
            if line["samples"] not in found[line["step"]]:
                found[line["step"]].append(line["samples"])
    return {step: sorted(batches) for step, batches in found.items()}


async def lost(elastic: Job, gateway: GatewayPeer, pod: int, *, uuid: str = "attempt-1", number: int = 1) -> list[str]:
    """Loses a pod with its processes, and opens a recovery. Returns the offered strategies."""
    await elastic.lose(f"worker-{pod}")
    await gateway.report("ReportProcessFault", number)
    return await opened(gateway, pod, uuid=uuid, number=number)


async def test_training_goes_on_without_a_pod_that_is_lost(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """No process takes the lost rank. Another rank computes its share, and the parameters equal those of an undisturbed run."""
    await elastic.start()
    await elastic.reached(3)
    assert await lost(elastic, gateway, 3) == ["recover", "downgrade", "dump", "exit"]
    await gateway.smaller(3)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 0)
    assert re.fullmatch(r"training goes on after step \d+, with 3 of 4 ranks", info)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    times = gateway.all("ReportTime")
    assert [report.now.missing_share for report in times if report.final] == [0.25]
    assert {report.before.missing_share for report in times} == {0.0}
    assert is_as_whole(elastic, whole, 3)


async def smaller(elastic: Job, gateway: GatewayPeer, *pods: int) -> None:
    """Loses pods one after the other. Training goes on without each of them."""
    for number, pod in enumerate(pods, 1):
        await lost(elastic, gateway, pod, uuid=f"attempt-{number}", number=number)
        await gateway.smaller(pod, uuid=f"attempt-{number}")
        assert (await status(gateway, number))[:2] == ("downgrade", 0)


def is_as_whole(elastic: Job, whole: Whole, *missing: int) -> bool:
    """Returns whether the job ended as the undisturbed one with the same samples in each step, but for missing ranks."""
    ends, drawn = whole
    return finals(elastic) == {rank: end for rank, end in ends.items() if rank not in missing} and samples(elastic) == drawn


async def test_a_pod_leaves_by_order_while_all_is_well(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """No fault is reported, the others repeat the step, and the pod comes back later."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await gateway.smaller(3)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 0)
    assert "with 3 of 4 ranks" in info
    assert gateway.all("ReportProcessFault") == []
    await elastic.lose("worker-3")
    await elastic.worker(3)
    await gateway.larger(3)
    assert (await status(gateway, 2))[:2] == ("upgrade", 0)
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)


async def test_a_refused_order_to_leave_changes_nothing_for_training_that_is_well(elastic: Job, gateway: GatewayPeer) -> None:
    """Training goes on with all its ranks and without another order. No fault is reported."""
    elastic.environment["KEEPS"] = "groups"
    await elastic.start()
    await elastic.reached(3, rank=1)
    await gateway.smaller(3)
    assert (await status(gateway))[:2] == ("downgrade", 406)
    elastic.hurry()
    assert await elastic.codes() == {0}
    assert gateway.all("ReportProcessFault") == []


async def test_a_return_that_is_stopped_leaves_training_as_it_was(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The order is answered, and the next one is carried out."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    await gateway.larger(3, uuid="attempt-2")
    await gateway.order("hot-switch", "stop switch", uuid="attempt-2-stops")
    assert await status(gateway, 2) == ("upgrade", 406, "ordered")
    await elastic.worker(3)
    await gateway.larger(3, uuid="attempt-3")
    assert (await status(gateway, 3))[:2] == ("upgrade", 0)
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)


async def test_an_order_that_follows_the_result_of_a_recovery_at_once_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane sends it when it has received the result. The manager must not answer that a fault is being recovered."""
    answers = asyncio.Queue[tuple[str, int, str]]()

    class Followed(Reports):
        def status(self, code: int, info: str, strategy: str = RETRY, attempt: str = "") -> None:
            answers.put_nowait((strategy, code, info))
            if strategy == RETRY:
                manager.grow(frozenset({1}), "attempt-2")

    monkeypatch.setattr(coordinator, "meet", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(recovery, "stand", lambda _: asyncio.sleep(0, {}))
    monkeypatch.setattr(Recovery, "_repaired", lambda *_: asyncio.sleep(0, 5))
    membership = Membership(2)
    means: Any = SimpleNamespace(membership=membership, pods=Pods(), reports=Followed(), alone=False, order_timeout=60)
    means.store, means.stall_seconds, means.injection = asyncio.Event().wait(), 0, Injection()
    running = asyncio.create_task((manager := Coordinator(means)).run())
    for rank in range(2):
        membership.enroll(Hello(rank=rank, process=f"{rank}/0"), 3)
    manager.recover(Order(Kind.RETRY, "attempt-1"))
    async with asyncio.timeout(10):
        assert await answers.get() == ("retry", 0, "training goes on after step 5")
        assert await answers.get() == ("upgrade", 0, "these ranks are there already")
    running.cancel()
    await asyncio.wait({running})


async def test_an_order_before_the_first_step_does_not_end_training_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is refused. No further one follows, while pods may wait for a node for as long as it takes."""
    answers = asyncio.Queue[tuple[str, int, str]]()

    class Heard(Reports):
        def status(self, code: int, info: str, strategy: str = RETRY, attempt: str = "") -> None:
            answers.put_nowait((strategy, code, info))

    for name in ("ORDERED_SECONDS", "KEEP_SECONDS"):
        monkeypatch.setattr(recovery, name, 0.0)
    monkeypatch.setattr(coordinator, "FIRST_SECONDS", 0.0)
    membership, store = Membership(2), asyncio.get_running_loop().create_future()
    store.set_result(None)
    means: Any = SimpleNamespace(membership=membership, pods=Pods(), reports=Heard(), alone=False, order_timeout=0)
    means.store, means.stall_seconds, means.injection, means.decides_without_orders = store, 0, Injection(), True
    means.rebuild_timeout = 1
    running = asyncio.create_task((manager := Coordinator(means)).run())
    membership.enroll(Hello(rank=0, process="0/0"), 0)
    manager.recover(Order(Kind.SMALLER, "attempt-1", frozenset({1})))
    async with asyncio.timeout(10):
        assert await answers.get() == ("downgrade", 406, "training has not begun")
    for _ in range(100):
        await asyncio.sleep(0)
    assert not membership.starting[0].dismissed
    running.cancel()
    await asyncio.wait({running})


async def test_a_second_pod_may_be_lost_while_one_is_missing(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The rank that carries another one's share is lost with it. Others carry both."""
    await elastic.start()
    await elastic.reached(3)
    await smaller(elastic, gateway, 3, 0)
    assert (await status(gateway, 2))[2].endswith("with 2 of 4 ranks")
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 0, 3)


async def test_only_one_rank_may_be_left(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """One rank computes all four shares of each batch."""
    await elastic.start()
    await elastic.reached(3)
    await smaller(elastic, gateway, 0, 3, 1)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 0, 1, 3)


@pytest.mark.parametrize("pod", [0, 3])
async def test_a_missing_pod_comes_back(pod: int, elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """Its new processes take their rank back from the one that carried its share, random numbers included."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, pod)
    await elastic.worker(pod)
    await gateway.larger(pod)
    strategy, code, info = await status(gateway, 2)
    assert (strategy, code) == ("upgrade", 0)
    assert info.endswith("with 4 of 4 ranks")
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_pods_come_back_in_another_order_than_they_were_lost(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """While some ranks are back, others still carry the shares of those that are not."""
    await elastic.start()
    await elastic.reached(2, rank=1)
    await smaller(elastic, gateway, 0, 1)
    for number, pod in enumerate((1, 0), 3):
        await elastic.worker(pod, "backup")
        await gateway.larger(pod, uuid=f"attempt-{number}")
        assert (await status(gateway, number))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_a_pod_that_dies_on_its_way_back_costs_nothing(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """Its process ends when it has taken the state. Training goes on without it, and a second one comes back."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    elastic.environment["FAULTS"] = "3:*:joined"
    await elastic.worker(3)
    await gateway.larger(3, uuid="attempt-2")
    strategy, code, info = await status(gateway, 2)
    assert (strategy, code) == ("upgrade", 406)
    assert "with 3 of 4 ranks" in info
    elastic.environment["FAULTS"] = ""
    await elastic.worker(3)
    await gateway.larger(3, uuid="attempt-3")
    assert (await status(gateway, 3))[:2] == ("upgrade", 0)
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)


@pytest.mark.parametrize("place", ["between", "backward", "updated", "after"])
async def test_a_rank_that_carries_a_share_is_replaced_in_its_pod(
    place: str, elastic: Job, gateway: GatewayPeer, whole: Whole
) -> None:
    """Its new process goes on with both shares, wherever in a step the one before it has died."""
    elastic.environment["FAULTS"] = f"0:12:{place}"
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    elastic.hurry()
    await gateway.report("ReportProcessFault", 2)
    await opened(gateway, 0, uuid="attempt-2", number=2)
    await gateway.in_place(0, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


async def test_a_rank_that_carries_a_share_is_taken_by_another_pod(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """A backup pod takes the rank, and what another pod has kept of both shares."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    await lost(elastic, gateway, 0, uuid="attempt-2", number=2)
    await gateway.elsewhere(0, uuid="attempt-2")
    await elastic.backup(0)
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 3)


@pytest.mark.parametrize("missing", [3, 0])
async def test_no_pod_takes_a_rank_that_has_left(missing: int, elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """A control plane that does not know how far a recovery came may order that. The ranks that train go on without it."""
    faulty = 3 - missing
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, missing)
    await lost(elastic, gateway, faulty, uuid="attempt-2", number=2)
    await elastic.backup(missing)
    await elastic.backup(faulty)
    await gateway.elsewhere(missing, faulty, uuid="attempt-2")
    refused = f"rank {missing} has left the job: it comes back with the strategy upgrade"
    assert await status(gateway, 2) == ("recover", 406, refused)
    await gateway.elsewhere(faulty, uuid="attempt-3")
    assert (await status(gateway, 3))[:2] == ("recover", 0)
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole, missing)


async def test_a_rank_that_has_left_is_not_switched_to_another_pod(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The hot switch is refused when the new pod has loaded, and training goes on without the rank."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    await elastic.backup(3)
    await gateway.hot_switch(3, uuid="attempt-2")
    assert (await gateway.report("ReportRecoverStrategy", 2)).strategies == ["exit"]
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert gateway.all("ReportProcessFault")[1:] == []
    assert is_as_whole(elastic, whole, 3)


async def test_a_manager_that_follows_another_one_knows_who_is_missing(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The ranks tell it. It takes the missing rank back."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    elastic.started["manager"].kill()
    await elastic.started["manager"].code()
    await elastic.manager()
    await gateway.until(lambda: gateway.subscriptions == 2)
    await elastic.worker(3)
    await gateway.larger(3)
    assert (await status(gateway, 2))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_ranks_that_are_left_save_the_state_of_all(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """A last checkpoint of a job with a missing rank has the state of all ranks. The job begins again from it."""
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


@pytest.mark.parametrize(
    "settings",
    [{"MICRO": "3"}, {"VIEWS": "yes"}, {"WORKERS": "1"}, {"COUNTS": "yes"}, {"BRANCH": "yes"}, {"MICRO": "3", "SYNC": "yes"}],
    ids=["micro-batches", "views of buckets", "loader workers", "counted passes", "branches", "sums of sums"],
)
async def test_gradients_are_gathered_for_each_share_apart(
    settings: dict[str, str], elastic: Job, gateway: GatewayPeer, zygote: Zygote, tmp_path: Path
) -> None:
    """Several passes of one update, gradients that are views of buckets, loaders with workers, and a model that counts its
    passes change nothing."""
    (tmp_path / "beside").mkdir()
    undisturbed = Job(tmp_path / "beside", zygote, gateway, dict(settings), [], SCRIPT, pods=PODS)
    await undisturbed.start()
    assert await undisturbed.codes() == {0}
    elastic.environment |= settings
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, (finals(undisturbed), samples(undisturbed)), 0)


@pytest.mark.parametrize(
    ("keeps", "reason"),
    [
        ("batches", "rank 0: its data are not divided into shares: session(data=rekindle_training.shares(make_loader))"),
        ("groups", "rank 0: the script has made 1 process groups of its own"),
        (
            "static",
            "rank 0: DistributedDataParallel(static_graph=True) has to sum in its first pass, not after those of other shares",
        ),
        (
            "sums",
            (
                "rank 0: gradients of a batch are summed over ranks several times: put all passes of a batch but its last one "
                "into `no_sync()`"
            ),
        ),
        (
            "beside",
            (
                "rank 0: an optimizer updates parameters of no model that is wrapped in DistributedDataParallel over the default "
                "process group"
            ),
        ),
        ("norm", "rank 0: SyncBatchNorm needs the batches of all ranks at once"),
        (
            "next",
            "rank 0: a backward pass is outside of `for batch in training.batches():`: make it before the next batch is drawn",
        ),
        (
            "draws",
            (
                "rank 0: random numbers are drawn outside of `for batch in training.batches():`: draw them inside, or in "
                "`with training.apart():`"
            ),
        ),
        ("left", "rank 0: the script updates before its loop over training.batches() has ended: update after that loop"),
    ],
)
async def test_a_script_that_needs_all_its_ranks_offers_no_smaller_size(
    keeps: str, reason: str, elastic: Job, gateway: GatewayPeer
) -> None:
    """The order is refused with what is missing, and nothing is changed: another strategy is carried out."""
    elastic.environment["KEEPS"] = keeps
    await elastic.start()
    await elastic.reached(3, rank=1)
    assert await lost(elastic, gateway, 3) == ["recover", "dump", "exit"]
    await gateway.smaller(3)
    assert await status(gateway) == ("downgrade", 406, f"the number of ranks cannot change: {reason}")
    assert "smaller size not offered" in elastic.outputs()
    await gateway.elsewhere(3, uuid="attempt-2")
    await elastic.backup(3)
    assert (await status(gateway, 2))[:2] == ("recover", 0)


async def test_a_script_that_is_refused_while_small_trains_on_after_a_restart(elastic: Job, gateway: GatewayPeer) -> None:
    """The script does what only a job of full size can do. Each order is answered with that, and pods wait for the restart."""
    elastic.environment |= {"KEEPS": "left", "KEEPS_FROM": "8"}
    await elastic.start()
    await elastic.reached(3, rank=1)
    await smaller(elastic, gateway, 3)
    elastic.hurry()
    await gateway.report("ReportProcessFault", 2)
    reason = "the script updates before its loop over training.batches() has ended: update after that loop"
    await gateway.in_place(0, 1, 2, uuid="attempt-2")
    assert await status(gateway, 2) == ("recover", 406, reason)
    await gateway.dump(uuid="attempt-3")
    assert await status(gateway, 3) == ("dump", 406, reason)
    await elastic.end()
    elastic.generation += 1
    await elastic.start()
    assert 0 in await elastic.codes()
    assert finals(elastic).keys() == set(range(PODS))


async def test_an_order_that_does_not_fit_the_size_is_refused(elastic: Job, gateway: GatewayPeer) -> None:
    """The answer names the field or the rank. Training goes on as it was."""
    await elastic.start()
    await elastic.reached(3, rank=1)
    await gateway.larger(7, uuid="attempt-1")
    assert await status(gateway) == ("upgrade", 406, "nodeRankIds: '7' is not one of 0 to 3")
    await gateway.larger(2, uuid="attempt-2")
    assert await status(gateway, 2) == ("upgrade", 0, "these ranks are there already")
    assert await lost(elastic, gateway, 3, uuid="attempt-3") == ["recover", "downgrade", "dump", "exit"]
    await gateway.smaller(uuid="attempt-3")
    assert (await status(gateway, 3))[2].startswith("nodeRankIds: no pod is named")
    await gateway.smaller(2, uuid="attempt-4")
    assert await status(gateway, 4) == ("downgrade", 406, "rank 3 is gone")
    await gateway.smaller(0, 1, 2, 3, uuid="attempt-5")
    assert await status(gateway, 5) == ("downgrade", 406, "no rank would be left to train")
    await gateway.smaller(3, uuid="attempt-6")
    assert (await status(gateway, 6))[:2] == ("downgrade", 0)
    assert 0 in await elastic.codes()


@pytest.mark.parametrize("seed", range(20))
async def test_no_sample_is_lost_or_seen_twice_whatever_the_size(
    seed: int, elastic: Job, gateway: GatewayPeer, whole: Whole
) -> None:
    """Pods leave and come back at random. Each step has the samples of the undisturbed one, and the parameters are the same."""
    assert is_as_whole(elastic, whole, *await at_random(seed, elastic, gateway))


async def at_random(seed: int, elastic: Job, gateway: GatewayPeer) -> set[int]:
    """Runs a job of which pods leave and come back at random. Returns those that are missing at its end."""
    chance, there, losses = random.Random(seed), set(range(PODS)), 0
    await elastic.start()
    await elastic.reached(2)
    for number in range(1, 6):
        missing, attempt = sorted(set(range(PODS)) - there), f"attempt-{number}"
        if missing and (len(there) == 1 or chance.random() < 0.5):
            there.add(pod := chance.choice(missing))
            await elastic.worker(pod)
            await gateway.larger(pod, uuid=attempt)
            assert (await status(gateway, number))[:2] == ("upgrade", 0)
        else:
            there.discard(pod := chance.choice(sorted(there)))
            losses += 1
            await lost(elastic, gateway, pod, uuid=attempt, number=losses)
            await gateway.smaller(pod, uuid=attempt)
            assert (await status(gateway, number))[:2] == ("downgrade", 0)
    assert 0 in await elastic.codes()
    return set(range(PODS)) - there
