"""Restart of the processes of pods that are left, in their pods, together with pods that replace lost ones."""

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pod_restart import PodRestart
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.replacements import CannotRepair
from rekindle_wire.training_pb2 import PodState, ProcessState
from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import STEPS, WORLD, Job
from tests.training.standalone import last_words
from tests.training.test_dead_managers import replaced_manager
from tests.training.test_last_checkpoint import saved_step


async def lost(job: Job, gateway: GatewayPeer) -> None:
    """Starts a job and loses pod rank 1. The recovery is opened."""
    job.slow_down()
    await job.start()
    await job.reached(3)
    await job.lose("worker-1")
    await all_lost(gateway, 2, 3)
    await opened(gateway, 2, 3)


def pids(job: Job, rank: int) -> list[int]:
    """Returns the processes that executed steps of this rank, in their order."""
    return list(dict.fromkeys(line["pid"] for line in job.steps(rank)))


async def test_processes_that_are_left_start_again_in_their_pod_from_the_last_checkpoint(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The pod keeps its launcher. Its processes are other ones, in a further generation with the new pod, and no step is lost."""
    await lost(job, gateway)
    await gateway.dump()
    saved = saved_step((await status(gateway))[2])
    await gateway.again(1)
    await job.backup(1)
    said = f"all other processes have started again in their pods, and training goes on after step {saved}"
    assert await status(gateway, 2) == ("exit", 0, said)
    first = await gateway.report("ReportProgress", 2)
    assert (first.step, first.steps_lost) == (saved + 1, 0)
    assert first.incarnation != gateway.all("ReportProgress")[0].incarnation
    assert await job.codes() == {0, -signal.SIGKILL}
    assert job.final() == reference
    assert [len(pids(job, rank)) for rank in range(4)] == [2, 2, 2, 2]
    assert len({line["pod_uid"] for line in job.steps(0)}) == 1
    assert job.executed_once(0, 1)
    faulty = {one.rankId for report in gateway.all("ReportProcessFault") for one in report.faultRanks}
    assert faulty == {"2", "3"}, "the end of a process that starts again is no fault"


async def test_what_only_one_rank_has_is_restored_too(recovered: Job, gateway: GatewayPeer, undisturbed: list[str]) -> None:
    """Random numbers, data positions and averages are those of an undisturbed run, on ranks that began again and on new ones."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "2:5:backward"}
    await recovered.start()
    await all_lost(gateway, 2)
    await opened(gateway, 2, 3)
    await gateway.dump()
    assert (await status(gateway))[:2] == ("dump", 0)
    await gateway.again(1)
    await recovered.backup(1)
    assert (await status(gateway, 2))[:2] == ("exit", 0)
    assert [await recovered.started[pod].code() for pod in ("worker-0", "backup-1")] == [0, 0]
    assert {*last_words(recovered.outputs())} == {*undisturbed}


async def test_without_a_saved_state_training_begins_again_and_says_what_is_lost(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A job without a checkpoint executes all steps again, with the same result."""
    await lost(job, gateway)
    done = job.steps(0)[-1]["step"]
    await gateway.again(1)
    await job.backup(1)
    assert (await status(gateway))[:2] == ("exit", 0)
    first = await gateway.report("ReportProgress", 2)
    assert (first.step, first.steps_lost) == (1, done)
    assert await job.codes() == {0, -signal.SIGKILL}
    assert job.final() == reference


async def test_a_process_that_does_not_react_is_killed_and_started_again(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A rank is stopped in a pod that stays. The order does not wait for an answer of it."""
    job.flags = ["--grace-seconds", "1", "--spares=1"]
    await lost(job, gateway)
    os.kill(job.children("worker-0")[1], signal.SIGSTOP)
    await gateway.again(1, uuid="attempt-2")
    await job.backup(1)
    assert (await status(gateway))[:2] == ("exit", 0)
    assert await job.codes() == {0, -signal.SIGKILL}
    assert job.final() == reference


async def test_a_manager_that_follows_another_one_goes_on_with_the_order(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The launcher says for which attempt it has started its processes again. It does so once."""
    await lost(job, gateway)
    await gateway.again(1)
    await job.printed("pod restart ordered")
    subscriptions = gateway.subscriptions
    await replaced_manager(job)
    await gateway.until(lambda: gateway.subscriptions > subscriptions)
    await gateway.stop_train()
    await gateway.announce(2, 3)
    await gateway.again(1)
    await job.backup(1)
    await gateway.until(lambda: any(report.status.code == 0 for report in gateway.all("ReportRecoverStatus")))
    assert await job.codes() <= {0, -signal.SIGKILL}
    assert job.final() == reference
    assert [len(pids(job, rank)) for rank in (0, 1)] == [2, 2]
    assert len({report.incarnation for report in gateway.all("ReportProgress")}) == 2


async def test_a_pod_that_came_as_a_backup_starts_its_processes_again_too(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A backup has taken pod rank 1. Then the pod of rank 0 is lost, and the processes of the backup's pod begin again."""
    await lost(job, gateway)
    await gateway.elsewhere(1)
    await job.backup(1)
    assert (await status(gateway))[:2] == ("recover", 0)
    await job.lose("worker-0")
    await gateway.report("ReportProcessFault", 2)
    await opened(gateway, 0, 1, uuid="attempt-2", number=2)
    await gateway.dump("attempt-2")
    assert (await status(gateway, 2))[:2] == ("dump", 0)
    await gateway.again(0, uuid="attempt-2")
    await job.backup(0)
    assert (await status(gateway, 3))[:2] == ("exit", 0)
    assert await job.codes() == {0, -signal.SIGKILL}
    assert job.final() == reference
    assert [len(pids(job, rank)) for rank in (2, 3)] == [3, 3]


async def test_processes_of_a_replaced_pod_that_live_do_no_step_any_more(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """Processes of the replaced pod belong to an earlier generation. The pod is deleted later."""
    job.slow_down()
    await job.start()
    await job.reached(3)
    await opened(gateway, 2, 3)
    old = pids(job, 2)
    await gateway.dump()
    saved = saved_step((await status(gateway))[2])
    await gateway.again(1)
    await job.backup(1)
    assert (await status(gateway, 2))[:2] == ("exit", 0)
    assert await job.codes() == {0}
    assert job.final() == reference
    assert max(line["step"] for line in job.steps(2) if line["pid"] in old) == saved


async def test_a_process_that_fails_before_it_trains_is_reported(job: Job, gateway: GatewayPeer) -> None:
    """The control plane restarts the whole job then. The report names the rank."""
    await lost(job, gateway)
    Path(job.folder, "checkpoints").write_text("no folder")
    await gateway.again(1)
    await job.backup(1)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("exit", 406), info
    await job.end()


async def test_a_pod_that_is_lost_meanwhile_is_reported(job: Job, gateway: GatewayPeer) -> None:
    """A launcher that is away is awaited for some seconds only, since it reconnects at once."""
    await lost(job, gateway)
    await job.lose("worker-0")
    await gateway.again(1)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("exit", 406)
    assert info == "the pod of rank 0 is gone"
    await job.end()


def state(*, able: bool = True, again: str = "") -> PodState:
    """State of the pod of ranks 0 and 1, as its launcher reports it."""
    processes = [ProcessState(rank=rank, process=f"pod/{rank}/1") for rank in (0, 1)]
    return PodState(pod="pod", processes=processes, can_begin_again=able, again=again)


async def test_a_launcher_of_an_older_release_is_not_ordered() -> None:
    """An older launcher would ignore the order, and all others would wait for its processes."""
    pods = Pods(decides=True)
    pods.hear(pods.attach(), state(able=False))
    with pytest.raises(CannotRepair, match="launcher of rank 0 is of an older release"):
        await PodRestart(Membership(WORLD, 2), pods, {2, 3}, "attempt-1").run(cast(Store, None), 1)


@pytest.mark.parametrize(("again", "ordered"), [("", True), ("attempt-0", True), ("attempt-1", False)])
async def test_a_launcher_that_comes_back_gets_the_order_unless_it_has_carried_it_out(again: str, ordered: bool) -> None:
    """The order goes to pods that were there. A new pod does not get it."""
    pods = Pods()
    pods.begin_again({"pod"}, "attempt-1", "all begin again")
    one, other = pods.attach(), pods.attach()
    pods.hear(one, state(again=again))
    pods.hear(other, PodState(pod="new", can_begin_again=True))
    orders = [one.outbox.get_nowait() for _ in range(one.outbox.qsize())]
    assert [order.again.attempt for order in orders if order] == ["attempt-1"] * ordered
    assert other.outbox.empty()


async def test_an_order_without_pods_still_ends_all_processes(job: Job, gateway: GatewayPeer) -> None:
    """An `exit` without pods makes all ranks leave, and pods end with the exit code for that."""
    await lost(job, gateway)
    await gateway.order("changeStrategy", "change_strategy", strategy="exit", uuid="attempt-2")
    assert await job.started["worker-0"].code() == 2
    assert len(job.steps(0)) < STEPS
    await job.end()
