"""Orders of recorded recoveries from the reports that led to them: ours are the same, except where a reason is given."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from activities.pod_recreation import MakingAnew
from rekindle.model.incident import Incident
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.recorded import Dialogue, Recorded
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import RESUMES, Harness, a_mindio_job, harness
from tests.workflows.support.openings import fields

RETRY, ELSEWHERE = Mode.ONLINE_RETRY, Mode.PROCESS_RESCHEDULING
SAVE, RESTART = Mode.DYING_GASP, Mode.JOB_RESCHEDULING
RECOVERED, ESCALATE = Outcome.RECOVERED, Outcome.ESCALATE

OPENED = """
    > fault 1:1
    < stopTrain stop_train 1:1
    > stopped 1:1
    < globalFault on_global_rank,fault_nodes_exit 1:1 pods=1
    > fault 1:1
    > offers exit,dump,recover 1:1"""

# `recover` does not name again the pods that the announcement ordered to exit. In 03 and 09k that exit ended the new agent, while
# the server counted a success.
RECOVER = f"""{OPENED}
    - changeStrategy change_strategy 1:1 strategy=recover pods=1
    + changeStrategy change_strategy 1:1 strategy=recover
    > status recover 0
"""

RECOVERS = {
    # In 09k a platform decides (`test_recorded_words.py`): the orders are those of any other job.
    "02, 03 and 09k, an exception in rank 1, or its end": Dialogue.of(2, "recover,dump", RECOVER),
    # The second fault is reported after the announcement. Of the two pods, only the second one has not been ordered to exit.
    "08a, rank 2 is killed before the announcement": Dialogue.of(
        4,
        "recover,dump",
        """
        > fault 1:1
        < stopTrain stop_train 1:1
        > stopped 1:1
        < globalFault on_global_rank,fault_nodes_exit 1:1 pods=1
        > fault 1:1 2:1
        > offers exit,dump,recover 1:1 2:1
        - changeStrategy change_strategy 1:1 2:1 strategy=recover pods=1,2
        + changeStrategy change_strategy 1:1 2:1 strategy=recover pods=2
        > status recover 0
        """,
    ),
}


def retried(fault: str, routes: str = "") -> Dialogue:
    """Args:
    routes: how long they have, in the announcement.
    """
    return Dialogue.of(
        2,
        "retry,recover,dump",
        f"""
        > fault {fault}
        < stopTrain stop_train {fault}
        > stopped {fault}
        < globalFault on_global_rank {fault} {routes}
        > fault {fault}
        > offers exit,dump,retry,recover {fault}
        < changeStrategy change_strategy {fault} strategy=retry pods=1
        > status retry 0
        """,
    )


RETRIES = {
    "05, a fault of memory": retried("1:0"),
    "09j, a fault of the network": retried("1:2", "timeout=33"),
}

# After 406 MindIO saves its state, and all pods start again. Pods that are deleted need no order to exit.
FAILS = f"""{OPENED}
    - changeStrategy change_strategy 1:1 strategy=recover pods=1
    + changeStrategy change_strategy 1:1 strategy=recover
    > status recover 406 1
    < changeStrategy change_strategy 1:1 strategy=dump pods=1
    > status dump 0 1
    - changeStrategy change_strategy strategy=exit pods=1 extra=dump_exit
    - changeStrategy change_strategy strategy=exit pods=1 extra=dump_exit
"""

FAILURES = {
    "07a, the repair fails": Dialogue.of(2, "recover,dump", FAILS),
    "08c, rank 2 is killed while recover waits": Dialogue.of(4, "recover,dump", FAILS),
}

# The attempt survives another subscriber. The original's went on in the new stream with an empty uuid, without ranks and pods,
# opened another attempt in the middle of it, and training never came back.
SECOND_SUBSCRIBER = Dialogue.of(
    2,
    "recover,dump",
    """
    > fault 1:1
    < stopTrain stop_train 1:1
    > stopped 1:1
    - globalFault on_global_rank,fault_nodes_exit
    + globalFault on_global_rank,fault_nodes_exit 1:1 pods=1
    > fault 1:1
    - stopTrain stop_train 1:1
    > offers exit,dump,recover 1:1
    + changeStrategy change_strategy 1:1 strategy=recover
    * status recover 0
    """,
)


@asynccontextmanager
async def replayed(
    env: WorkflowEnvironment, dialogue: Dialogue, settle: timedelta = timedelta(0)
) -> AsyncIterator[tuple[Harness, Recorded]]:
    """A recovery with our orders of this dialogue, each once, in one attempt; a client as strict as the real one bears them."""
    limits = Limits(settle=settle, release=timedelta(0))
    job = a_mindio_job(pods=dialogue.pods, ranks_per_pod=1, annotations={RECOVER_STRATEGY: dialogue.allows}, limits=limits)
    cluster = TheirCluster(job, nodes=dialogue.pods + 3)
    async with harness(env, job, cluster) as world:
        peer = Recorded(world.gateway.address, job.id, None, cluster.backup_runs)
        peer.pods = cluster
        peer.replay(dialogue)
        async with peer:
            await world.look()
            await peer.begin()
            yield world, peer
            assert [fields(order) for order in peer.received] == dialogue.orders
            assert len({order.uuid for order in peer.received}) == 1
            assert (peer.exited, peer.broken_rules) == ("", [])


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recovery delete pods at once, since no scheduler deletes them here."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


@pytest.mark.parametrize("recorded", RECOVERS)
async def test_pods_are_replaced_as_recorded(temporal: WorkflowEnvironment, recorded: str) -> None:
    """Dialogues 02, 03, 08a and 09k."""
    async with replayed(temporal, RECOVERS[recorded]) as (world, _):
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]


@pytest.mark.parametrize("recorded", RETRIES)
async def test_the_step_is_repeated_as_recorded(temporal: WorkflowEnvironment, recorded: str) -> None:
    """Dialogues 05 and 09j; routes get 3 s."""
    async with replayed(temporal, RETRIES[recorded]) as (world, _):
        assert ladder(await world.incident()) == [(RETRY, RECOVERED)]


@pytest.mark.parametrize("recorded", FAILURES)
async def test_behind_a_repair_that_fails_as_recorded_the_job_is_restarted(temporal: WorkflowEnvironment, recorded: str) -> None:
    """Dialogues 07a and 08c. MindIO saves its state before."""
    async with replayed(temporal, FAILURES[recorded]) as (world, peer):
        await world.phase(RESUMES)
        await peer.cut()
        await peer.attach()
        await world.phase(RESUMES)
        await world.skip(timedelta(seconds=6))
        assert ladder(await world.incident()) == [(ELSEWHERE, ESCALATE), (SAVE, ESCALATE), (RESTART, RECOVERED)]


async def test_a_second_subscriber_costs_no_recovery(temporal: WorkflowEnvironment) -> None:
    """Dialogue 09b: it comes between the stop and the announcement, and leaves again."""
    async with replayed(temporal, SECOND_SUBSCRIBER, settle=timedelta(seconds=1)) as (world, peer):
        await world.phase("faults settle and are announced")
        await _subscribe_once(world)
        await asyncio.wait_for(peer.attached.wait(), 20)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]


async def _subscribe_once(world: Harness) -> None:
    me = wire.ClientInfo(jobId=world.job.id, role="second")
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub = RecoverStub(channel)
        for call in (stub.Init, stub.Register):
            await call(me)
        stream = stub.SubscribeProcessManageSignal(me)
        await stream.initial_metadata()
        stream.cancel()
