"""The recoveries whose histories are kept: one for each way in which a recovery can end. `generate.py` plays them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowExecutionStatus

from rekindle import ids
from rekindle.model.attachment import Progress
from rekindle.model.elastic import Elastic
from rekindle.model.keys import POD_RESCHEDULING, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from tests.fakes.peer import Script, ScriptedPeer, nothing_before
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, a_mindio_job, node_fault, pod_fault, sub_health
from workflows.training_job import ROOM

SOON = timedelta(seconds=0.3)
LIMIT = timedelta(minutes=15)

Play = Callable[[Harness, ScriptedPeer], Awaitable[None]]


@dataclass
class Scene:
    """A course of events, and the workflows whose histories are kept."""

    play: Play
    kinds: tuple[str, ...]
    """Types of the workflows that it takes, in the order of their starts.

    The job's own runs are kept where it is named, and end with the scene.
    """
    job: dict[str, Any] = field(default_factory=dict)
    script: Script = field(default_factory=Script)
    prepare: Callable[[ScriptedCluster], None] = lambda _: None
    mindio: bool = False

    def build(self) -> Any:
        return (a_mindio_job if self.mindio else a_job)(**self.job)


async def _sub_health(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await world.incident()


async def _escalates(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await world.restarted()


async def _fails_at_start(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await world.phase("backup pod runs")
    world.cluster.fail(world.cluster.backup().metadata.name)
    await world.restarted()


async def _dies_while_loading(world: Harness, peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await peer.until(lambda: "new pod running" in peer.orders)
    backup = world.cluster.fail(world.cluster.backup().metadata.name)
    await world.fault(pod_fault(backup.metadata.name, backup.metadata.uid, backup=True))
    await world.restarted()


def _late(order: str) -> Play:
    async def play(world: Harness, peer: ScriptedPeer) -> None:
        await world.fault(sub_health())
        await peer.until(lambda: order in peer.orders)
        await world.skip(LIMIT)
        await world.restarted()

    return play


async def _rescue(world: Harness, peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await world.phase("backup loads, training pauses")
    world.cluster.fail(world.cluster.backup().metadata.name)
    await peer.pause()
    await world.incident()


async def _real_fault(world: Harness, peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await peer.until(lambda: "new pod running" in peer.orders)
    await peer.report_fault(2)
    await world.restarted()


async def _struck_in_the_rebuild(world: Harness, peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await peer.until(lambda: "migration" in peer.orders)
    await peer.report_fault(0)
    await peer.resume(406)
    await world.restarted()


async def _cut(world: Harness, peer: ScriptedPeer) -> None:
    await world.fault(sub_health())
    await peer.until(lambda: "new pod running" in peer.orders)
    await peer.cut()
    await peer.attach()
    await peer.until(lambda: peer.orders.count("new pod running") == 2)
    await peer.pause()
    await world.incident()


async def _given_up(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(node_fault("node-0"))
    await world.incident()


async def _restarts(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(node_fault("node-0"))
    await world.restarted()


async def _faulty_and_restarts(world: Harness, peer: ScriptedPeer) -> None:
    await peer.report_fault(3)
    await world.restarted()


async def _front(world: Harness, _peer: ScriptedPeer) -> None:
    await (await world.front(force=True)).result()
    await world.incident()


async def _refused_front(world: Harness, _peer: ScriptedPeer) -> None:
    await (await world.front()).result()


async def _cancelled_front(world: Harness, peer: ScriptedPeer) -> None:
    front = await world.front(force=True)
    await peer.until(lambda: "new pod running" in peer.orders)
    await front.cancel()
    await front.result()
    await world.incident()


async def _lifted(world: Harness, peer: ScriptedPeer) -> None:
    await _sub_health(world, peer)
    world.cluster.spare = True
    await world.tell(ids.Updates.LIFT)
    await world.incident(2)


async def _long_run(world: Harness, peer: ScriptedPeer) -> None:
    first = await world.entity.describe()
    run = world.client.get_workflow_handle(first.id, run_id=first.run_id)
    for step in itertools.count(2):
        await world.tell(ids.Updates.PROGRESS, Progress(incarnation="life-1", step=step))
        if (await run.describe()).history_length > ROOM:
            break
    await peer.report_fault(3, kind="0")
    while (await run.describe()).status is WorkflowExecutionStatus.RUNNING:
        await asyncio.sleep(0.03)
    await world.incident()


def _faulty(kind: str) -> Play:
    async def play(world: Harness, peer: ScriptedPeer) -> None:
        await peer.report_fault(3, kind=kind)
        await world.incident()

    return play


async def _hit_again(world: Harness, peer: ScriptedPeer) -> None:
    async def strikes(_: str) -> None:
        peer.script.before_status = nothing_before
        await peer.report_fault(0)

    peer.script.before_status = strikes
    await peer.report_fault(3)
    await world.incident()


async def _falls_from_mode_to_mode(world: Harness, peer: ScriptedPeer) -> None:
    await peer.report_fault(3, kind="0")
    await world.restarted()


async def _small_and_back(world: Harness, _peer: ScriptedPeer) -> None:
    await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
    await world.incident()
    await world.incident(2)


async def _smaller_by_hand(world: Harness, _peer: ScriptedPeer) -> None:
    await (await world.front(None, mode=ids.Workflows.SCALING, size=1)).result()
    await world.incident()


def _no_spare(cluster: ScriptedCluster) -> None:
    cluster.spare = False


def _over_quota(cluster: ScriptedCluster) -> None:
    cluster.refuses_backups = "exceeded quota"


def _backups_wait(cluster: ScriptedCluster) -> None:
    cluster.backup_starts = False


def _a_pod_never_ends(cluster: ScriptedCluster) -> None:
    cluster.terminating_for_ever.add(cluster.holder(1).metadata.name)


HOT, LAST, JOB = ids.Workflows.HOT_SWITCH, ids.Workflows.JOB_RESCHEDULING, ids.Workflows.TRAINING_JOB
FELL = (HOT, LAST)
RETRY, IN_PLACE, ELSEWHERE = ids.Workflows.ONLINE_RETRY, ids.Workflows.IN_PLACE, ids.Workflows.PROCESS_RESCHEDULING
SAVE, AGAIN = ids.Workflows.DYING_GASP, ids.Workflows.POD_RESCHEDULING
SMALLER, SCALING = ids.Workflows.ELASTIC_TRAINING, ids.Workflows.SCALING
ELASTIC: dict[str, Any] = {
    "annotations": {},
    "elastic": Elastic(least=1, wait=timedelta(0)),
    "limits": Limits(grow_again=timedelta(seconds=1)),
}
ANY_SIZE = ("recover", "downgrade")
ALL_ALLOWED: dict[str, Any] = {"annotations": {}}
FAULTY_PODS: dict[str, Any] = {"labels": {POD_RESCHEDULING: "on"}}
OTHER_PODS: dict[str, Any] = {"annotations": {RECOVER_STRATEGY: "recover"}}

SCENES: dict[str, Scene] = {
    "recovered": Scene(_sub_health, (JOB, HOT)),
    "recovered-mindio": Scene(_sub_health, (HOT,), mindio=True),
    "recovered-after-a-cut": Scene(_cut, (HOT,), script=Script(pauses=False)),
    "ignored-no-spare": Scene(_sub_health, (JOB, HOT), {"limits": Limits(backup_scheduled=SOON)}, prepare=_no_spare),
    "ignored-refused-by-the-cluster": Scene(_sub_health, (HOT,), prepare=_over_quota),
    "ignored-rescue": Scene(_sub_health, (HOT,), script=Script(went_on="continue")),
    "ignored-rescue-mindio": Scene(_rescue, (HOT,), script=Script(pauses=False), mindio=True),
    "escalate-fails-at-start": Scene(_fails_at_start, (JOB, *FELL), prepare=_backups_wait),
    "ignored-does-not-run": Scene(_sub_health, (HOT,), {"limits": Limits(backup_start=SOON)}, prepare=_backups_wait),
    "escalate-dies-while-loading": Scene(_dies_while_loading, FELL, script=Script(pauses=False)),
    "escalate-only-exit": Scene(_escalates, FELL, script=Script(offers=("exit",))),
    "escalate-no-pause": Scene(_late("new pod running"), FELL, script=Script(pauses=False)),
    "escalate-406": Scene(_escalates, FELL, script=Script(status=406)),
    "escalate-no-resumption": Scene(_late("migration"), FELL, script=Script(resumes=False)),
    "cancelled-real-fault": Scene(_real_fault, (JOB, *FELL), script=Script(pauses=False)),
    "cancelled-in-the-rebuild": Scene(_struck_in_the_rebuild, FELL, script=Script(resumes=False)),
    "cancelled-front": Scene(_cancelled_front, (HOT, HOT), script=Script(pauses=False)),
    "refused-front": Scene(_refused_front, (HOT,)),
    "front": Scene(_front, (HOT, HOT)),
    "given-up": Scene(_given_up, (JOB, LAST), {"limits": Limits(pods_stopped=SOON)}, prepare=_a_pod_never_ends),
    "retried": Scene(_faulty("0"), (RETRY,), ALL_ALLOWED),
    "in-place": Scene(_faulty("1"), (JOB, IN_PLACE), ALL_ALLOWED),
    "in-place-hit-again": Scene(_hit_again, (IN_PLACE,), ALL_ALLOWED, Script(statuses=[406])),
    "in-other-pods": Scene(_faulty("1"), (JOB, ELSEWHERE), OTHER_PODS),
    "from-mode-to-mode": Scene(
        _falls_from_mode_to_mode, (JOB, RETRY, IN_PLACE, ELSEWHERE, SAVE, LAST), ALL_ALLOWED, Script(status=406)
    ),
    "small-and-back": Scene(_small_and_back, (JOB, SMALLER, SCALING), ELASTIC, Script(repairs=ANY_SIZE)),
    "smaller-front": Scene(_smaller_by_hand, (SCALING, SCALING), ELASTIC, Script(repairs=ANY_SIZE)),
    "saved": Scene(_restarts, (SAVE, LAST), {"annotations": {RECOVER_STRATEGY: "dump"}}),
    "pods-again": Scene(_faulty("1"), (JOB, AGAIN), FAULTY_PODS),
    "pods-again-in-vain": Scene(_faulty_and_restarts, (AGAIN, LAST), FAULTY_PODS, Script(status=406)),
    "restarted": Scene(_restarts, (LAST,)),
    "lifted": Scene(_lifted, (JOB, HOT, HOT), {"limits": Limits(backup_scheduled=SOON)}, prepare=_no_spare),
    "continued-as-new": Scene(_long_run, (JOB, RETRY, JOB), ALL_ALLOWED),
}
