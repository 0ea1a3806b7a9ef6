"""Pods that wait, loaded, for the rank of a pod that is replaced, with real processes and a scripted control plane."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rekindle_training.launcher.arguments import UsageInvalid, parse
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.orders import Orders
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.recovery import Order
from rekindle_training.processor.processor import REFUSED
from rekindle_wire import protocol_problem
from rekindle_wire.recover_pb2 import ProcessManageSignal
from rekindle_wire.training_pb2 import Hello, PodOrder, PodState, Standby, Take
from rekindle_wire.training_pb2_grpc import PodsServicer, add_PodsServicer_to_server
from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.job import children as children_of


async def with_standby(job: Job, name: str = "standby") -> str:
    """Starts a job that trains and a standby, and returns the uid of the standby when it is loaded."""
    job.slow_down()
    await job.start()
    uid = await job.standby(name)
    await job.printed("standby registered")
    await job.reached(2)
    return uid


async def lost(job: Job, gateway: GatewayPeer, *ranks: int) -> None:
    """Kills the processes of these ranks. Training stands, and the control plane has chosen to replace their pods."""
    per_pod = 4 // job.pods
    for rank in ranks:
        os.kill(job.children(f"worker-{rank // per_pod}")[rank % per_pod], signal.SIGKILL)
    await all_lost(gateway, *ranks)
    assert await opened(gateway, *ranks) == ["recover", "dump", "exit"]


async def named_and_stopped(job: Job, gateway: GatewayPeer) -> str:
    """Returns the uid of a stopped standby that is named for rank 2 and does not receive it."""
    uid = await with_standby(job)
    job.started["standby"].kill(signal.SIGSTOP)
    await lost(job, gateway, 2)
    await gateway.elsewhere(1, standbys={uid: 1})
    await job.printed("standby assigned to a pod")
    return uid


async def recovered(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> set[int]:
    """Waits for the end of training with the bits of an undisturbed run, and returns the exit codes of all pods."""
    assert (await status(gateway))[:2] == ("recover", 0)
    codes = await job.codes()
    assert job.final() == reference
    return codes


async def test_a_pod_is_rescheduled_to_a_standby(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A standby receives its pod rank, and takes all ranks of that pod. Nothing is lost, and no rank waits for the standby that
    is left."""
    uid = await with_standby(job)
    await job.standby("left")
    await job.printed("standby registered", 2)
    await lost(job, gateway, 2)
    await gateway.elsewhere(1, standbys={uid: 1})
    assert await recovered(job, gateway, reference) == {0, 128 + signal.SIGKILL}
    assert await job.started["standby"].code() == await job.started["left"].code() == 0
    assert job.executed_once(0, 1)
    assert {step["pod_uid"] for step in job.steps(3)} == {"uid-2", uid}
    assert "role=backup" in job.started["manager"].output.read_text()


async def test_a_pod_is_switched_to_a_standby(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A pod is switched to a standby as to any other backup pod."""
    uid = await with_standby(job)
    await gateway.hot_switch(0, 1)
    await gateway.order("hot-switch", "new pod running", standbys={uid: 0})
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.executed_once()
    assert job.steps(0)[-1]["pod_uid"] == job.steps(1)[-1]["pod_uid"] == uid
    print(f"pause {job.pause_seconds():.3f} s")


async def test_two_standbys_take_the_ranks_of_two_pods_at_once(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A standby takes the ranks of the pod for which it is named."""
    job.pods = 4
    first = await with_standby(job)
    second = await job.standby("second")
    await job.printed("standby registered", 2)
    await lost(job, gateway, 1, 3)
    await gateway.elsewhere(1, 3, standbys={first: 3, second: 1})
    await recovered(job, gateway, reference)
    assert (job.steps(1)[-1]["pod_uid"], job.steps(3)[-1]["pod_uid"]) == (second, first)


@pytest.mark.same_path("a standby dies before it joins")
@pytest.mark.parametrize("another", ["standby", "backup"])
async def test_a_standby_that_dies_before_it_joins_is_followed_by_another_pod(
    another: str, job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The standby was named, and did not join. The order is given again in another attempt."""
    await named_and_stopped(job, gateway)
    job.started["standby"].kill()
    assert await opened(gateway, 2, uuid="attempt-2", number=2) == ["recover", "dump", "exit"]
    if another == "standby":
        await gateway.elsewhere(1, uuid="attempt-2", standbys={await job.standby("another"): 1})
    else:
        await gateway.elsewhere(1, uuid="attempt-2")
        await job.backup(1)
    await recovered(job, gateway, reference)


async def test_a_manager_that_dies_when_a_standby_was_named_is_followed_by_one_that_is_told_again(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The standby may have received it or not. An order that comes before the standby speaks is carried out when it does."""
    uid = await named_and_stopped(job, gateway)
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()
    await gateway.until(lambda: gateway.subscriptions == 2)
    assert await opened(gateway, 2, number=2) == ["recover", "dump", "exit"]
    await gateway.elsewhere(1, standbys={uid: 1})
    await job.printed("strategy=recover")
    job.started["standby"].kill(signal.SIGCONT)
    await recovered(job, gateway, reference)
    assert job.steps(3)[-1]["pod_uid"] == uid


async def test_of_a_standby_and_a_backup_pod_for_the_same_ranks_one_leaves(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The pod that is there first takes all ranks. The other one ends with 0, also where it comes later."""
    uid = await with_standby(job)
    await lost(job, gateway, 2)
    await gateway.elsewhere(1, standbys={uid: 1})
    await job.backup(1)
    await recovered(job, gateway, reference)
    assert await job.started["standby"].code() == await job.started["backup-1"].code() == 0
    assert job.steps(2)[-1]["pod_uid"] == job.steps(3)[-1]["pod_uid"]


async def test_a_standby_ends_with_a_job_that_ends(job: Job, gateway: GatewayPeer) -> None:
    """A standby ends with 0, since nothing was wrong with it, even if it waited for a job that did not begin."""
    await job.standby()
    await job.manager()
    await job.printed("standby registered")
    await gateway.order("changeStrategy", "change_strategy", strategy="exit")
    assert await job.started["standby"].code() == 0


# What the manager makes of orders, and of who comes.


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("recover-in-place", "extraParams: 'recover-in-place' is not a JSON object with an object of standbys"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ('{"standbys": ["a"]}', "is not a JSON object"),
        ('{"standbys": {"a": 2}}', "extraParams: '2' is not one of 0 to 1"),
        ('{"standbys": {"a": true}}', "extraParams: 'true' is not one of 0 to 1"),
        ('{"standbys": {"a": 0}}', "a standby is to take pod rank 0, which is not replaced"),
        ('{"standbys": {"a": 1, "b": 1}}', "two standbys are to take one pod rank"),
    ],
)
def test_an_order_that_makes_no_sense_of_standbys_says_so(extra: str, problem: str) -> None:
    """The order is answered like one for unknown ranks. In a hot switch, only `exit` is then offered."""
    said: list[Any] = []
    coordinator: Any = SimpleNamespace(
        ranks=4,
        ranks_per_pod=2,
        switched=frozenset({2, 3}),
        recover=said.append,
        stop=lambda: said.append("stopped"),
        refuse_switch=lambda: said.append("refused"),
        name_standbys=said.append,
    )
    orders = Orders(coordinator)
    orders.obey(
        ProcessManageSignal(uuid="1", signalType="changeStrategy", changeStrategy="recover", nodeRankIds=["1"], extraParams=extra)
    )
    orders.obey(ProcessManageSignal(uuid="2", signalType="hot-switch", actions=["new pod running"], extraParams=extra))
    order, *switch = said
    assert isinstance(order, Order)
    assert problem in order.problem
    assert switch == ["stopped", "refused"]


def test_a_standby_that_is_named_before_it_speaks_is_told_when_it_does() -> None:
    """The standby receives its rank again on each stream until it has the rank. Another standby that is named for that rank takes
    its place."""
    pods, waits = Pods(), Standby(loaded=True)
    pods.name({"late": 1, "other": 0})
    for pod in (pods.attach(), pods.attach()):
        pods.hear(pod, PodState(pod="launcher", pod_uid="late", standby=waits))
        assert pod.outbox.get_nowait() == PodOrder(take=Take(pod_rank=1))
    pod = pods.attach()
    pods.hear(pod, PodState(pod="launcher", pod_uid="late"))
    pods.name({"third": 1})
    assert pod.outbox.empty()
    replaced = pods.attach()
    pods.hear(replaced, PodState(pod="first", pod_uid="late", standby=waits))
    assert replaced.outbox.empty()


def test_a_standby_that_was_told_its_rank_and_freezes_is_not_forgotten() -> None:
    """A frozen standby comes when its node resumes, as a backup that is not awaited any more. Neither it nor the standby named in
    its place is forgotten."""
    pods, waits = Pods(), Standby(loaded=True)
    pods.name({"frozen": 1})
    frozen = pods.attach()
    pods.hear(frozen, PodState(pod="first", pod_uid="frozen", standby=waits))
    pods.detach(frozen)  # it was silent
    pods.name({"another": 1})
    pods.hear(pods.attach(), PodState(pod="second", pod_uid="another", standby=waits))
    assert pods.forget_standbys() == {"first", "second"}


def test_backups_of_one_pod_are_taken_together() -> None:
    """The pod of which all processes wait is chosen from two pods for the same ranks. The newer one is chosen where both are
    complete."""
    membership = Membership(4, 2)
    for process in ("a/2/1", "b/3/1", "a/3/2"):
        membership.enroll(Hello(rank=int(process[2]), role="backup", process=process), 0)
    assert {one.identity for one in membership.backups.values()} == {"a/2/1", "a/3/2"}
    membership.enroll(Hello(rank=2, role="backup", process="b/2/2"), 0)
    assert {one.identity for one in membership.backups.values()} == {"b/2/2", "b/3/1"}


def test_who_comes_when_its_ranks_are_taken_leaves() -> None:
    """A standby that was named while it loaded leaves. The pod that has the ranks stays what it is."""
    membership = Membership(1)
    member, _ = membership.enroll(Hello(rank=0, role="backup", process="first/0/1"), 0)
    membership.install({0: member})
    membership.turn_away({"first", "late"})
    late, outbox = membership.enroll(Hello(rank=0, role="backup", process="late/0/1"), 0)
    assert outbox.get_nowait().leave.exit_code == 0  # type: ignore[union-attr]
    assert late.dismissed
    assert not member.dismissed
    assert not membership.backups


# The launcher.


STANDBY = {"MINDX_TASK_ID": "a-job", "REKINDLE_POD_ROLE": "standby", "REKINDLE_POD_UID": "a-uid"}


def test_a_standby_needs_no_rank_and_a_job_that_gives_it_one() -> None:
    """A standby is accepted whatever the start command says of the rank. A job without a control plane refuses it."""
    assert parse(["--nnodes=2", "x.py"], STANDBY).is_standby
    assert parse(["--nnodes=2", "--node-rank=7", "x.py"], STANDBY).is_standby
    with pytest.raises(UsageInvalid, match="REKINDLE_POD_ROLE=standby: only a control plane gives a standby its rank"):
        parse(["--standalone", "x.py"], STANDBY)
    with pytest.raises(UsageInvalid, match="REKINDLE_POD_ROLE=standby and --no-python contradict each other"):
        parse(["--no-python", "x"], STANDBY)


class Taking(PodsServicer):
    """A manager that gives each standby which is loaded pod rank 1, twice, if it `gives` one."""

    def __init__(self, gives: bool = True) -> None:
        self.gives = gives
        self.states: list[PodState] = []

    async def Attach(self, request_iterator: AsyncIterator[PodState], context: Any) -> AsyncIterator[PodOrder]:  # noqa: N802
        async for state in request_iterator:
            self.states.append(state)
            if self.gives and state.standby.loaded:
                for pod_rank in (1, 0):
                    yield PodOrder(take=Take(pod_rank=pod_rank))


async def listening(manager: PodsServicer, job: Job) -> grpc.aio.Server:
    server = grpc.aio.server()
    add_PodsServicer_to_server(manager, server)
    server.add_insecure_port(f"127.0.0.1:{job.port}")
    await server.start()
    return server


def scripted(job: Job, script: str) -> None:
    job.script, job.arguments = str(job.folder / "script.py"), []
    (job.folder / "script.py").write_text("import os, pathlib, signal, sys, time\n" + script)


async def test_processes_of_a_standby_know_their_pod_when_it_has_a_rank(job: Job) -> None:
    """The processes learn the rank by whichever variable they read first. The standby starts before the manager, and keeps the
    rank that it received first."""
    scripted(
        job,
        "import torch\n"
        "with torch.inference_mode():\n    first = os.environ['NODE_RANK']\n"
        "names = 'RANK', 'LOCAL_RANK', 'GROUP_RANK', 'REKINDLE_POD_RANK', 'REKINDLE_POD_ROLE', 'WORLD_SIZE'\n"
        "os.write(1, ' '.join([first, *(os.environ[name] for name in names)]).encode() + b'\\n')",
    )
    await job.standby()
    manager = Taking()
    server = await listening(manager, job)
    assert await job.started["standby"].code() == 0
    await server.stop(None)
    lines = job.started["standby"].output.read_text().splitlines()
    assert sorted(line for line in lines if line[0] == "1") == ["1 2 0 1 1 backup 4", "1 3 1 1 1 backup 4"]
    assert manager.states[0].pod_uid == "uid-0"
    assert [process.rank for process in manager.states[-1].processes] == [2, 3]
    assert not manager.states[-1].HasField("standby")


async def test_a_standby_that_nobody_speaks_to_ends_at_a_signal(job: Job) -> None:
    """The standby ends at once, with its processes."""
    scripted(job, "os.environ['RANK']")
    await job.standby()
    async with asyncio.timeout(60):
        while not (zygote := children_of(job.started["standby"].pid)) or len(children_of(zygote[0])) < 2:
            await asyncio.sleep(0.02)
    job.started["standby"].kill(signal.SIGTERM)
    assert await job.started["standby"].code(5) == 128 + signal.SIGTERM


class Refusing(PodsServicer):
    """A manager of another release."""

    async def Attach(self, request_iterator: AsyncIterator[PodState], context: Any) -> AsyncIterator[PodOrder]:  # noqa: N802
        first = await anext(request_iterator)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, protocol_problem(first.protocol + 1))
        yield PodOrder()


async def test_a_standby_of_another_release_fails_and_says_why(job: Job) -> None:
    """The standby's pod fails, since nothing else would show that it could never be used."""
    scripted(job, "os.environ['RANK']")
    server = await listening(Refusing(), job)
    await job.standby()
    assert await job.started["standby"].code() == REFUSED
    await server.stop(None)
    assert "install one release of rekindle-recovery-training everywhere" in job.outputs()


async def test_a_process_of_a_standby_that_dies_is_followed_by_another_one_a_few_times(job: Job) -> None:
    """The pod then fails with the code of the process. The standby is not loaded until then."""
    scripted(job, "sys.exit(7)")
    manager = Taking(gives=False)
    server = await listening(manager, job)
    await job.standby()
    assert await job.started["standby"].code() == 7
    await server.stop(None)
    printed = job.started["standby"].output.read_text()
    assert printed.count("starting another") == 3
    assert not any(state.standby.loaded for state in manager.states)
