"""Recoveries that the control plane orders: training stops, faults are announced, ranks are replaced in place or elsewhere."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rekindle_training.manager import membership, recovery
from rekindle_training.manager.coordinator import EXIT_CODE
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.orders import Orders
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.repair import lost, plan
from rekindle_training.manager.replacements import Elsewhere, InPlace
from rekindle_wire import PROTOCOL
from rekindle_wire.recover_pb2 import ProcessManageSignal
from rekindle_wire.training_pb2 import (
    Decides,
    End,
    Hello,
    Kept,
    ManagerMessage,
    PodOrder,
    PodState,
    ProcessState,
    RankMessage,
    Replace,
    Standing,
)
from rekindle_wire.training_pb2_grpc import PodsServicer, add_PodsServicer_to_server
from tests.training.dialogue import all_lost, fault, kill_rank, offers, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.ranks import ScriptedRank
from tests.training.standalone import last_words


async def test_a_rank_that_is_killed_is_replaced_in_its_pod_by_a_spare(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The pod stays, the others repeat the step, and the status names the step after which training goes on. The order comes
    without a stop and an offer before it. A retry is refused, since a process is gone."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    recovered.flags = ["--spares=1"]
    await recovered.start()
    assert await fault(gateway) == {"1": "1"}
    await gateway.retry()
    assert await status(gateway) == ("retry", 405, "rank 1 is gone")
    await gateway.in_place(1, uuid="attempt-2")
    assert await status(gateway, 2) == ("recover", 0, "training goes on after step 4")
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed
    assert "spare assigned to a rank" in recovered.outputs()


async def test_a_rank_that_is_killed_is_taken_by_a_backup_pod(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """All ranks of the pod are taken, with the random numbers and data that other pods have kept. The pod's living rank waits."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "2:5:backward"}
    await recovered.start()
    assert await fault(gateway) == {"2": "1"}
    assert await opened(gateway, 2, 3) == ["recover", "dump", "exit"]
    await gateway.elsewhere(1)
    await recovered.backup(1)
    assert await status(gateway) == ("recover", 0, "training goes on after step 4")
    assert await recovered.started["worker-0"].code() == 0
    assert await recovered.started["backup-1"].code() == 0
    assert await recovered.started["worker-1"].code() == 128 + signal.SIGKILL
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_pod_that_is_lost_is_taken_by_a_backup_pod(recovered: Job, gateway: GatewayPeer, undisturbed: list[str]) -> None:
    """A pod is lost with its launcher and its memory. State that only its ranks had is kept by the other pod."""
    recovered.slow_down(1000)
    await recovered.start()
    await recovered.reached(2)
    await recovered.lose("worker-1")
    await gateway.report("ReportProcessFault")
    assert await opened(gateway, 2, 3) == ["recover", "dump", "exit"]
    assert {one.rankId for one in gateway.all("ReportStopComplete")[0].faultRanks} == {"2", "3"}
    await gateway.elsewhere(1)
    await recovered.backup(1)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_pod_that_others_have_made_anew_takes_its_ranks(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """A pod that is recreated by an operator of the cluster takes its ranks, although its processes do not know that they are a
    backup."""
    recovered.slow_down(1000)
    await recovered.start()
    await recovered.reached(2)
    await recovered.lose("worker-1")
    await gateway.report("ReportProcessFault")
    await opened(gateway, 2, 3)
    await gateway.elsewhere(1)
    await recovered.worker(1)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed


async def test_rank_0_is_as_replaceable_as_any_other(recovered: Job, gateway: GatewayPeer, undisturbed: list[str]) -> None:
    """Rank 0 is replaced by a backup pod, with no spare and no checkpoint."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "0:7:updated"}
    await recovered.start(0)
    assert await fault(gateway) == {"0": "1"}
    await opened(gateway, 0, 1)
    await gateway.elsewhere(0)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.started["backup-0"].code() == 0
    assert last_words(recovered.outputs()) == undisturbed


@pytest.mark.parametrize(
    ("kind", "type_"), [("raise", "1"), ("memory", "0")], ids=["an exception", "a fault of the device's memory"]
)
async def test_a_step_that_failed_is_repeated_where_nobody_is_gone(
    kind: str, type_: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The type of the fault says whether a retry may help. The control plane orders it."""
    recovered.environment |= {"KIND": kind, "FAULTS": "1:5:backward"}
    await recovered.start()
    assert await fault(gateway) == {"1": type_}
    assert await opened(gateway, 1) == ["retry", "recover", "dump", "exit"]
    await gateway.retry()
    assert await status(gateway) == ("retry", 0, "training goes on after step 4")
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_step_that_fails_in_each_retry_is_a_retry_that_failed(recovered: Job, gateway: GatewayPeer) -> None:
    """A retry is tried three times. The control plane then orders something else, and the ranks stand until it does."""
    recovered.environment |= {"FAULTS": "1:5:backward", "ONCE": "no"}
    await recovered.start()
    await fault(gateway)
    await gateway.retry()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("retry", 405)
    assert "training did not get beyond step 4 in 3 tries" in info
    await gateway.order("changeStrategy", "change_strategy", strategy="exit", uuid="attempt-2")
    assert {await recovered.started[f"worker-{pod}"].code() for pod in (0, 1)} == {2}


async def test_ranks_that_are_lost_together_are_replaced_together(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Ranks of two pods are replaced together, rank 0 among them."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "0:5:backward,3:5:backward"}
    recovered.flags = ["--spares=1"]
    await recovered.start()
    await all_lost(gateway, 0, 3)
    assert await opened(gateway, 0, 1, 2, 3) == ["recover", "dump", "exit"]
    await gateway.in_place(0, 3)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_stop_that_nobody_here_knows_a_reason_for_is_obeyed(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The cluster may have seen a node fail. The step is repeated where nothing is broken."""
    recovered.slow_down(1000)
    await recovered.start()
    await recovered.reached(2)
    assert await opened(gateway, 0) == ["retry", "recover", "dump", "exit"]
    assert not gateway.all("ReportStopComplete")[0].faultRanks
    await gateway.retry()
    assert (await status(gateway))[:2] == ("retry", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed
    assert not gateway.all("ReportProcessFault")


async def test_a_stop_that_comes_before_training_begins_is_refused(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """There is nothing to stop; the job begins as if nothing had been said."""
    await job.manager()
    await gateway.stop_train()
    await job.printed("order=stopTrain")
    for pod_rank in (0, 1):
        await job.worker(pod_rank)
    report = await gateway.report("ReportStopComplete")
    assert report.status.code == 406
    assert report.status.info in (
        "training begins again",
        "training has not begun",
    )  # the ranks start within ten seconds, or later
    assert await job.codes() == {0}
    assert job.final() == reference


# A second fault.


async def test_a_rank_that_is_lost_before_training_is_told_to_stop_is_recovered_with_the_first(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The second rank has a report of its own, and is listed in the answer."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    await recovered.start()
    assert await fault(gateway) == {"1": "1"}
    kill_rank(recovered, 2)
    assert await fault(gateway, 2) == {"2": "1"}
    await opened(gateway, 1, 2)
    assert [one.rankId for one in gateway.all("ReportStopComplete")[0].faultRanks] == ["1", "2"]
    await gateway.in_place(1, 2)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_rank_that_is_lost_behind_the_offers_needs_another_attempt(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The order names others: it fails, says which rank is gone, and is given again with that rank."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    await recovered.start()
    await fault(gateway)
    await opened(gateway, 0, 1)
    kill_rank(recovered, 2)
    assert await fault(gateway, 2) == {"2": "1"}
    await gateway.in_place(0, 1)
    assert await status(gateway) == ("recover", 406, "rank 2 is gone")
    await opened(gateway, 1, 2, uuid="attempt-2", number=2)
    await gateway.in_place(1, 2, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_rank_that_is_lost_while_another_is_replaced_needs_another_attempt(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Training stands already, so that it need not be stopped again."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward,2:5:rebuilt"}
    await recovered.start()
    await fault(gateway)
    await opened(gateway, 0, 1)
    await gateway.in_place(0, 1)
    assert await status(gateway) == ("recover", 406, "rank 2 is gone")
    assert await fault(gateway, 2) == {"2": "1"}
    await gateway.announce(0, 1, 2, uuid="attempt-2")
    assert await offers(gateway, 2) == ["recover", "dump", "exit"]
    await gateway.in_place(0, 1, 2, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_recovery_behind_the_last_step_is_answered(recovered: Job, gateway: GatewayPeer, undisturbed: list[str]) -> None:
    """Training is complete in the same moment, and the manager ends with it."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "3:12:ending"}
    await recovered.start()
    await fault(gateway)
    await opened(gateway, 3)
    await gateway.in_place(3)
    assert await status(gateway) == ("recover", 0, "training goes on after step 12")
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


# Processes that are to take a rank, and do not get so far.


def struck_anew(job: Job, second: str, faults: str) -> None:
    job.environment |= {"KIND": "kill", "FAULTS": faults, "SECOND": second}
    job.script = str(Path(__file__).with_name("scripts").joinpath("struck_anew.py"))


@pytest.mark.same_path("a replacement says nothing")
@pytest.mark.parametrize("kind", ["stop", "kill"])
async def test_a_replacement_that_is_stopped_or_dies_before_it_says_anything_is_followed_by_another_one(
    kind: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The manager knows of such a replacement by its launcher only."""
    struck_anew(recovered, f"1:{kind},2:{kind}", "1:5:backward,2:5:backward")
    await recovered.start()
    await all_lost(gateway, 1, 2)
    await opened(gateway, 1, 2)
    await gateway.in_place(1, 2)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_new_pod_of_which_a_process_dies_before_it_joins_makes_room_for_another_one(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The pod ends at once, also with a rank that already waits. Its end is the only sign that it is of no use."""
    struck_anew(recovered, "2:kill", "2:5:backward")
    await recovered.start()
    await fault(gateway)
    await opened(gateway, 2, 3)
    await gateway.elsewhere(1)
    assert await (await recovered.backup(1)).code() == 128 + signal.SIGKILL
    await recovered.backup(1)
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await recovered.started["backup-1"].code() == 0
    assert last_words(recovered.outputs()) == undisturbed


@pytest.mark.parametrize("how", ["a repair without orders fails", "the job is to end"])
async def test_replacements_that_have_not_said_anything_do_not_outlive_training(
    how: str, recovered: Job, gateway: GatewayPeer
) -> None:
    """A pod ends although all its failed ranks were replaced, since the replacements would receive no later order to leave."""
    struck_anew(recovered, "0:sleep,1:sleep", "0:5:backward,1:5:backward")
    is_alone = how == "a repair without orders fails"
    recovered.environment["REKINDLE_ORDER_TIMEOUT"] = "1" if is_alone else "60"
    await recovered.start()
    if not is_alone:
        await all_lost(gateway, 0, 1)
        await opened(gateway, 0, 1)
        await gateway.in_place(0, 1)
    await recovered.printed("order=replace", 2)
    if is_alone:
        await recovered.lose("worker-1")
    else:
        await gateway.order("changeStrategy", "change_strategy", strategy="exit", uuid="attempt-2")
    assert await recovered.started["worker-0"].code(30) in (EXIT_CODE, 128 + signal.SIGKILL)


def test_a_pod_whose_ranks_another_one_has_taken_is_asked_for_no_replacement() -> None:
    """A pod with ended processes may remain for a while. These processes are not in place."""
    membership, pods = Membership(1), Pods()
    for launcher in ("old", "new"):
        hello = Hello(rank=0, role="backup", process=f"{launcher}/0/1")
        membership.install({0: membership.enroll(hello, 0)[0]})
        membership.ended(f"{launcher}/0/1")
    new, old = pods.attach(), pods.attach()
    pods.hear(old, PodState(pod="old", processes=[ProcessState(rank=0, process="old/0/1", ended=-9)]))
    InPlace(membership, pods).start(frozenset({0}))
    assert old.outbox.empty()
    pods.hear(new, PodState(pod="new", processes=[ProcessState(rank=0, process="new/0/1", ended=-9)]))
    InPlace(membership, pods).start(frozenset({0}))
    assert new.outbox.get_nowait() == PodOrder(replace=Replace(process="new/0/1"))


def test_a_pod_that_came_as_a_backup_is_replaced_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new manager receives again the order that the previous one carried out. A later order is a new one."""
    made = Membership(2)
    for rank in range(2):
        made.enroll(Hello(rank=rank, role="backup", process=f"pod-{rank}/0/1", protocol=PROTOCOL), 3)
    assert Elsewhere(made, Pods(), {1}).ranks == frozenset()
    monkeypatch.setattr(membership, "TOLD_AGAIN_SECONDS", 0)
    assert Elsewhere(made, Pods(), {1}).ranks == {1}


def test_what_a_rank_that_is_to_be_replaced_keeps_of_others_counts() -> None:
    """Two pods are replaced, of which one lives: it has what only a rank of the other one had."""
    keeps = Standing(step=4, kept=[Kept(rank=1, step=4, own_state=b"own")])
    standing = {0: Standing(step=4), 1: Standing(place=Standing.LOST), 2: keeps}
    found = plan({**standing, **lost(standing, {1, 2})})
    assert found.own_states == {1: b"own"}
    assert found.transfers == ((0, 1), (0, 2))


# Orders that make no sense, and pods that are not kept.


def test_an_attempt_that_is_told_again_behind_its_strategy_does_not_stop_training() -> None:
    """A new stream may bring the strategy first, and then the whole attempt: nothing would follow that stop. The next attempt
    is carried out."""
    heard: list[tuple[str, recovery.Kind]] = []
    coordinator: Any = SimpleNamespace(
        recover=lambda order: heard.append((order.attempt, order.kind)), ranks=WORLD, ranks_per_pod=2
    )
    orders = Orders(coordinator)
    stop: dict[str, Any] = {"signalType": "stopTrain", "actions": ["stop_train"]}
    announce: dict[str, Any] = {"signalType": "globalFault", "actions": ["on_global_rank"]}
    retry: dict[str, Any] = {"signalType": "changeStrategy", "actions": ["change_strategy"], "changeStrategy": "retry"}
    for fields in (retry, stop, announce, retry):
        orders.obey(ProcessManageSignal(uuid="attempt-1", **fields))
    orders.obey(ProcessManageSignal(uuid="attempt-2", **stop))
    assert heard == [("attempt-1", recovery.Kind.RETRY), ("attempt-2", recovery.Kind.STOP)]


async def test_orders_of_ranks_that_there_are_not_are_answered(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The status says what is wrong. The manager and the ranks live on, and the next attempt is carried out."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    await recovered.start()
    await fault(gateway)
    await gateway.stop_train()
    await gateway.announce("9")
    assert await offers(gateway) == ["exit"]
    await gateway.in_place("one")
    assert await status(gateway) == ("recover", 406, "faultRanks: 'one' is not one of 0 to 3")
    await gateway.elsewhere(2)
    assert await status(gateway, 2) == ("recover", 406, "nodeRankIds: '2' is not one of 0 to 1")
    await gateway.elsewhere(uuid="attempt-2")
    assert (await status(gateway, 3))[:2] == ("recover", 406)
    await opened(gateway, 1, uuid="attempt-3", number=2)
    await gateway.in_place(1, uuid="attempt-3")
    assert (await status(gateway, 4))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_pod_of_which_a_rank_ends_before_it_trains_is_not_kept(job: Job, tmp_path: Path) -> None:
    """The pod fails at once, as without a manager, since there is no state with which another process could go on."""
    script = tmp_path / "fails.py"
    script.write_text("import os, signal, sys\nsys.exit(7) if os.environ['RANK'] == '2' else signal.pause()")
    job.script, job.arguments = str(script), []
    await job.start()
    assert await job.started["worker-1"].code() == 7


class Deciding(PodsServicer):
    """A manager that has said it decides, has rank 0 ended, and decides nothing."""

    def __init__(self) -> None:
        self.states: list[PodState] = []

    async def Attach(self, request_iterator: AsyncIterator[PodState], context: Any) -> AsyncIterator[PodOrder]:  # noqa: N802
        async for state in request_iterator:
            if not self.states:
                yield PodOrder(decides=Decides())
                yield PodOrder(end=End(process=state.processes[0].process))
            self.states.append(state)


async def test_a_pod_about_which_nothing_is_decided_ends(tmp_path: Path) -> None:
    """The other rank lives until then, and the exit code is that of the rank that ended."""
    script = tmp_path / "waits.py"
    script.write_text("import signal; signal.pause()")
    manager, server = Deciding(), grpc.aio.server()
    add_PodsServicer_to_server(manager, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    program = "import sys; from rekindle_training.launcher import main, pod; pod.UNDECIDED_SECONDS = 0.5; sys.exit(main.main())"
    job = {"MINDX_TASK_ID": "a-job", "REKINDLE_POD_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--nnodes=2", "--nproc-per-node=2", str(script), env={**os.environ, **job}
    )
    assert await launcher.wait() == 128 + signal.SIGKILL
    await server.stop(None)
    ends = [[process.ended for process in state.processes if process.HasField("ended")] for state in manager.states]
    assert [-signal.SIGKILL] in ends


# What is a fault of what.


async def test_lost_connections_that_nobody_is_to_blame_for_are_the_networks(job: Job, gateway: GatewayPeer) -> None:
    """The fault has a type of its own and names the rank that reported it first, since no rank is gone and none has failed."""

    def answer(message: ManagerMessage) -> RankMessage | None:
        return RankMessage(standing=Standing(step=1)) if message.HasField("stand") else None

    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [ScriptedRank(channel, rank, "worker", answer) for rank in range(WORLD)]
        await gateway.report("ReportProgress")
        ranks[3].say(RankMessage(generation=1, standing=Standing(step=1)))
        assert await fault(gateway) == {"3": "2"}
        assert await opened(gateway, 3) == ["retry", "recover", "dump", "exit"]
        await gateway.retry()
        assert await status(gateway) == ("retry", 0, "training goes on after step 1")
        await asyncio.gather(*(rank.finish(2) for rank in ranks))


# Beside a hot switch.


async def test_a_migration_that_is_ordered_while_a_fault_is_recovered_fails(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Training stands: that it goes on where it was is not to be said."""
    recovered.environment |= {"KIND": "kill", "FAULTS": "1:5:backward"}
    await recovered.start()
    await fault(gateway)
    await gateway.migrate(uuid="switch")
    assert await status(gateway) == ("migration", 406, "a fault is being recovered")
    await opened(gateway, 1)
    await gateway.in_place(1)
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_fault_before_the_pause_ends_a_switch(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The fault is reported and recovered, and the switch does not begin again by itself."""
    job.slow_down()
    await job.start()
    await gateway.hot_switch(2, 3)
    await job.reached(3)
    kill_rank(job, 1)
    assert await fault(gateway) == {"1": "1"}
    assert await opened(gateway, 1, uuid="attempt-2") == ["recover", "dump", "exit"]
    await gateway.in_place(1, uuid="attempt-2")
    assert (await status(gateway))[:2] == ("recover", 0)
    await job.backup(1)
    await job.printed("role=backup")  # one that comes when training is complete meets no manager
    assert await job.codes() == {0}
    assert job.final() == reference
    assert len(gateway.all("ReportRecoverStrategy")) == 1
