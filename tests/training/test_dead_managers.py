"""Managers that die in a recovery, and control planes that are away: the recovery ends, and no step is lost."""

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from rekindle_training.environment import EnvironmentIncomplete, ManagerEnvironment
from rekindle_training.manager import recovery
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_wire.training_pb2 import Decides, Hello, PodOrder
from tests.training.dialogue import fault, offers, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.standalone import last_words

MODES = ("retry", "in place", "elsewhere")


async def test_pods_are_kept_while_others_take_long_to_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are kept in a step that takes longer than a launcher waits for a message."""
    monkeypatch.setattr(recovery, "KEEP_SECONDS", 0.02)
    membership, pods = Membership(1), Pods()
    membership.install({0: membership.enroll(Hello(rank=0, process="new/0/1"), 0)[0]})
    pod = pods.attach()
    means: Any = SimpleNamespace(membership=membership, pods=pods, reports=None, order_timeout=60)
    recovering = asyncio.create_task(recovery.Recovery(means, asyncio.Event().wait, None).run())
    async with asyncio.timeout(60):
        assert [await pod.outbox.get() for _ in range(3)] == 3 * [PodOrder(decides=Decides())]
    recovering.cancel()
    await asyncio.wait({recovering})


async def replaced_manager(job: Job) -> None:
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()


@pytest.mark.same_path("a manager dies in a recovery")
@pytest.mark.parametrize("phase", ["fault", "stopped", "announced", "ordered"])
async def test_a_manager_that_dies_in_a_recovery_is_followed_by_one_that_ends_it(
    phase: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The next manager finds the ranks standing, and reports the fault again. It answers the whole attempt, which is sent
    again."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "2:5:backward"}
    await recovered.start()
    await fault(gateway)
    if phase != "fault":
        await gateway.stop_train()
        await gateway.report("ReportStopComplete")
    if phase in ("announced", "ordered"):
        await gateway.announce(2, 3)
        await offers(gateway)
    if phase == "ordered":
        await gateway.elsewhere(1)
        await recovered.printed("strategy=recover")
    subscriptions, heard = (
        gateway.subscriptions,
        [len(gateway.all(name)) for name in ("ReportStopComplete", "ReportRecoverStrategy")],
    )
    await replaced_manager(recovered)
    await gateway.until(lambda: gateway.subscriptions > subscriptions)
    await gateway.stop_train()
    stopped = await gateway.report("ReportStopComplete", heard[0] + 1)
    assert [one.rankId for one in stopped.faultRanks] == ["2"]
    await gateway.announce(2, 3)
    assert await offers(gateway, heard[1] + 1) == ["recover", "dump", "exit"]
    await gateway.elsewhere(1)
    await recovered.backup(1)
    assert await status(gateway) == ("recover", 0, "training goes on after step 4")
    assert await fault(gateway, 2) == {"2": "1"}
    assert await recovered.started["worker-0"].code() == 0
    assert last_words(recovered.outputs()) == undisturbed


@pytest.mark.same_path("a manager dies when the faults are announced")
@pytest.mark.parametrize("mode", ["retry", "in place"])
async def test_a_manager_that_dies_when_the_faults_are_announced_is_followed_by_one_that_repairs(
    mode: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The next manager repairs in place and by a retry."""
    await struck_in(mode, recovered, gateway)
    await replaced_manager(recovered)
    await gateway.until(lambda: gateway.subscriptions == 2)
    await opened(gateway, 2, number=2)
    await ordered(mode, gateway)
    assert (await status(gateway))[1:] == (0, "training goes on after step 1")
    assert (await fault(gateway, 2)).keys() == {"2"}
    assert await recovered.codes() == {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=pytest.mark.same_path(over="mode")) for mode in MODES])
async def test_a_manager_that_follows_one_which_repaired_and_told_nobody_repeats_a_step(
    mode: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """All orders of the attempt come again, and find nothing that is broken. No rank is replaced for them."""
    recovered.environment["PACE_MS"] = "1000"
    await struck_in(mode, recovered, gateway)
    await ordered(mode, gateway)
    if mode == "elsewhere":
        await recovered.backup(1)
    assert (await status(gateway))[1] == 0
    await replaced_manager(recovered)
    await gateway.until(lambda: gateway.subscriptions == 2)
    assert await opened(gateway, 2, number=2) == ["retry", "recover", "dump", "exit"]
    await ordered(mode, gateway)
    recovered.hurry()
    assert (await status(gateway, 2))[1] == 0
    assert len(gateway.all("ReportProcessFault")) == 1
    assert await recovered.started["worker-0"].code() == 0
    assert last_words(recovered.outputs()) == undisturbed


async def struck_in(mode: str, job: Job, gateway: GatewayPeer) -> None:
    """Strikes rank 2, and returns when the recovery is open."""
    job.environment |= {"KIND": "memory" if mode == "retry" else "kill", "FAULTS": "2:2:backward"}
    await job.start()
    await fault(gateway)
    await opened(gateway, 2)


async def ordered(mode: str, gateway: GatewayPeer) -> None:
    if mode == "retry":
        await gateway.retry()
    elif mode == "in place":
        await gateway.in_place(2)
    else:
        await gateway.elsewhere(1)


async def test_training_goes_on_by_itself_where_no_control_plane_speaks(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Training goes on in place, once. Orders that come late find nothing to replace, and their answer says so."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:2:backward", "REKINDLE_ORDER_TIMEOUT": "3"}
    recovered.slow_down(1000)
    recovered.flags = ["--spares=1"]
    await recovered.start()
    await recovered.printed("training recovered behind=1")
    assert await opened(gateway, 0, 1) == ["retry", "recover", "dump", "exit"]
    await gateway.retry()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("retry", 0)
    assert "it had gone on by itself after step 1: the control plane did not answer" in info
    recovered.hurry()
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed
    assert recovered.outputs().count("order=replace") == 1


async def test_ranks_wait_for_a_control_plane_that_is_away_where_they_are_told_to(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Ranks wait for as long as it takes."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    recovered.environment |= {"REKINDLE_ORDER_TIMEOUT": "0", "REKINDLE_WITHOUT_ORDERS": "wait"}
    await recovered.start()
    await fault(gateway)
    assert await opened(gateway, 0, 1) == ["recover", "dump", "exit"]
    await gateway.in_place(0, 1)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_training_ends_where_no_control_plane_speaks_and_a_pod_is_gone(recovered: Job, gateway: GatewayPeer) -> None:
    """The pods fail, as they would without a manager that decides, since no process can start the rank again."""
    recovered.environment |= {"REKINDLE_ORDER_TIMEOUT": "1", "LIMITS": "manager.replacements.LAUNCHER_SECONDS=2"}
    recovered.slow_down(1000)
    await recovered.start()
    await recovered.reached(2)
    await recovered.lose("worker-1")
    assert await recovered.started["worker-0"].code() == 1
    assert "is gone" in recovered.started["manager"].output.read_text()


def test_what_follows_without_orders_is_one_of_two_words() -> None:
    """A value that is none of the two is refused, with the accepted ones."""
    environment = {"MINDX_TASK_ID": "a-job", "MINDX_SERVER_IP": "127.0.0.1"}
    assert ManagerEnvironment.read(environment).decides_without_orders
    assert not ManagerEnvironment.read({**environment, "REKINDLE_WITHOUT_ORDERS": "wait"}).decides_without_orders
    with pytest.raises(EnvironmentIncomplete, match="REKINDLE_WITHOUT_ORDERS='exit' is not accepted: it is one of decide, wait"):
        ManagerEnvironment.read({**environment, "REKINDLE_WITHOUT_ORDERS": "exit"})
