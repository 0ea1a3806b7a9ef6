"""A hot switch with a failing step either leaves training alone or leads to job rescheduling."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from rekindle import ids
from rekindle.errors import Invalid
from rekindle.model.attachment import Attachment
from rekindle.model.cluster import Condition
from rekindle.model.dialogue import Order
from rekindle.model.fault import Sighting
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster, SlowCluster
from tests.support.harness import NOW, Harness, a_job, a_mindio_job, harness, node_fault, pod_fault, sub_health, training
from workflows.hot_switch import LOOK_AT_BACKUP

SOON = timedelta(seconds=0.4)
ALMOST = timedelta(minutes=14, seconds=55)
LIMIT = timedelta(minutes=15)

Scene = Callable[[Harness, ScriptedPeer], Awaitable[None]]


async def _nothing(_world: Harness, _peer: ScriptedPeer) -> None:
    return


def _no_spare(cluster: ScriptedCluster) -> None:
    cluster.spare = False


def _over_quota(cluster: ScriptedCluster) -> None:
    cluster.refuses_backups = "exceeded quota: pods=4"


def _on_the_old_node(cluster: ScriptedCluster) -> None:
    cluster.backup_node = cluster.holder(1).spec.node_name


def _on_a_sick_node(cluster: ScriptedCluster) -> None:
    """Another one, by others who choose the node: the pod would be moved on, and back again, without an end."""
    cluster.backup_node = "node-2"
    cluster.conditions["node-2"] = (Condition(type="SubHealthy", status="True", message="links flap there too"),)


def _whose_image_cannot_be_pulled(cluster: ScriptedCluster) -> None:
    cluster.backup_starts, cluster.backup_waits = False, "ImagePullBackOff: Back-off pulling image training:2"


def _that_does_not_run_in_time(cluster: ScriptedCluster) -> None:
    cluster.backup_starts, cluster.backup_waits = False, "ContainerCreating"


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_no_spare, "0/3 nodes are available: 3 Insufficient accelerators"),
        (_over_quota, "exceeded quota: pods=4"),
        (_on_the_old_node, "the backup pod was put on node-1, which it is to avoid"),
        (_on_a_sick_node, "the backup pod was put on node-2, which it is to avoid"),
        (_whose_image_cannot_be_pulled, "the backup pod does not start: "),
        (_whose_image_cannot_be_pulled, "is Pending: ImagePullBackOff: Back-off pulling image training:2"),
        (_that_does_not_run_in_time, "is Pending: ContainerCreating"),
    ],
)
async def test_without_a_spare_training_is_left_alone(
    temporal: WorkflowEnvironment, prepare: Callable[[ScriptedCluster], None], words: str
) -> None:
    """`stop switch` is ordered, the backup pod is deleted, and the policy becomes ignore. The reason of the verdict `ignored`
    contains the cluster's message."""
    stuck = "ImagePull" in words  # that is not waited for
    job = a_job(limits=Limits(backup_scheduled=SOON, backup_start=timedelta(hours=1) if stuck else SOON))
    cluster = ScriptedCluster(job)
    prepare(cluster)
    old = cluster.holder(1)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert [(v.mode, v.outcome) for v in incident.ladder] == [(Mode.HOT_SWITCH, Outcome.IGNORED)]
        assert incident.ladder[0].reason.startswith("no spare: ")
        assert words in incident.ladder[0].reason
        assert peer.carried_out == ["hot switch", "stop switch"]
        assert not [name for name in cluster.pods_by_name if "-hot-" in name]
        assert cluster.holder(1) == old
        assert incident.policy_after is SubHealthStrategy.IGNORE
        assert cluster.labels["subHealthyStrategy"] == "ignore"
        told = (await world.event("SubHealthDowngraded")).message
        assert "policy lift" in told
        assert "rekindle.io/no-spare: wait" in told


async def test_a_backup_behind_a_gate_says_nothing_of_spares(temporal: WorkflowEnvironment) -> None:
    """The scheduling gate of the backup pod was not removed. The owner's policy stays, and the verdict names the gate."""
    job = a_job(limits=Limits(backup_scheduled=SOON))
    cluster = ScriptedCluster(job)
    cluster.backup_gate = "kueue.x-k8s.io/admission"
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.HOT_SWITCH, Outcome.IGNORED)]
        assert "waits behind the scheduling gate kueue.x-k8s.io/admission" in incident.ladder[0].reason
        assert "no spare" not in incident.ladder[0].reason
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        assert peer.carried_out == ["hot switch", "stop switch"]


async def _fails_at_start(world: Harness, _peer: ScriptedPeer) -> None:
    await world.phase("backup pod runs")
    world.cluster.fail(world.cluster.backup().metadata.name, "image cannot be pulled")


async def _dies_while_loading(world: Harness, _peer: ScriptedPeer) -> None:
    await world.phase("backup loads, training pauses")
    backup = world.cluster.fail(world.cluster.backup().metadata.name)
    await world.fault(pod_fault(backup.metadata.name, backup.metadata.uid, backup=True))


async def _is_deleted_while_loading(world: Harness, peer: ScriptedPeer) -> None:
    await peer.until(lambda: "new pod running" in peer.orders)
    backup = world.cluster.backup().metadata
    await world.cluster.ensure_deleted(world.job.id, backup.name, backup.uid, grace_seconds=0)
    await world.skip(LOOK_AT_BACKUP)


async def _fifteen_minutes_of_pausing(world: Harness, peer: ScriptedPeer) -> None:
    await peer.until(lambda: "new pod running" in peer.orders)
    await world.skip(LIMIT)


async def _fifteen_minutes_of_resuming(world: Harness, peer: ScriptedPeer) -> None:
    await peer.until(lambda: "migration" in peer.orders)
    await world.skip(LIMIT)


PREPARED = ["hot switch", "new pod running"]
FAILURES: dict[str, tuple[Script, Limits, bool, Scene, str, list[str]]] = {
    "backup fails at start": (
        Script(),
        Limits(),
        False,
        _fails_at_start,
        "image cannot be pulled",
        ["hot switch", "stop switch"],
    ),
    "backup dies while loading": (
        Script(pauses=False),
        Limits(),
        True,
        _dies_while_loading,
        "the backup pod failed to run: pod",
        [*PREPARED, "stop switch"],
    ),
    "backup is deleted while loading": (
        Script(pauses=False),
        Limits(),
        True,
        _is_deleted_while_loading,
        "the backup pod failed to run: gone: ",
        [*PREPARED, "stop switch"],
    ),
    "only exit is offered": (Script(offers=("exit",)), Limits(), True, _nothing, "offers ['exit']", PREPARED),
    "nothing is offered": (Script(offers=()), Limits(), True, _nothing, "offers nothing", PREPARED),
    "no report of the pause": (
        Script(pauses=False),
        Limits(),
        True,
        _fifteen_minutes_of_pausing,
        "no report of the pause within 900 s",
        [*PREPARED, "stop switch"],
    ),
    "the report of the pause is lost": (
        Script(loses={"strategies"}, pauses=False),
        Limits(),
        True,
        _fifteen_minutes_of_pausing,
        "no report of the pause within 900 s",
        [*PREPARED, "stop switch"],
    ),
    "resuming fails with 406": (
        Script(status=406),
        Limits(pause_crossing=SOON),
        True,
        _nothing,
        "reports 406",
        [*PREPARED, "migration"],
    ),
    "resuming fails with an unknown code": (
        Script(status=777),
        Limits(pause_crossing=SOON),
        True,
        _nothing,
        "reports 777",
        [*PREPARED, "migration"],
    ),
    "no report of the resumption": (
        Script(resumes=False),
        Limits(),
        True,
        _fifteen_minutes_of_resuming,
        "no report that training resumed within 900 s",
        [*PREPARED, "migration"],
    ),
    "the report of the resumption is lost": (
        Script(loses={"status"}),
        Limits(),
        True,
        _fifteen_minutes_of_resuming,
        "no report that training resumed within 900 s",
        [*PREPARED, "migration"],
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_each_failure_rule_leads_straight_to_job_rescheduling(temporal: WorkflowEnvironment, case: str) -> None:
    """The verdict names the rule. All pods start again, and sub-health is ignored from then on."""
    script, limits, starts, scene, reason, orders = FAILURES[case]
    job = a_job(limits=limits)
    cluster = ScriptedCluster(job)
    cluster.backup_starts = starts
    before = {pod.metadata.uid for pod in cluster.pods_by_name.values()}
    async with training(temporal, job, script, cluster) as (world, peer):
        await world.fault(sub_health())
        await scene(world, peer)
        incident = await world.restarted()
        _is_escalated(incident, reason)
        assert peer.carried_out == orders
        assert cluster.labels["subHealthyStrategy"] == "ignore"
        assert reason in (cluster.labels["rekindle.io/sub-health-downgraded"] or "")
        assert sorted(cluster.pods_by_name) == [f"{job.name}-worker-0", f"{job.name}-worker-1"]
        assert before.isdisjoint(pod.metadata.uid for pod in cluster.pods_by_name.values())


def _is_escalated(incident: Incident, reason: str) -> None:
    failed, restarted = incident.ladder
    assert (failed.mode, failed.outcome, failed.training) == (Mode.HOT_SWITCH, Outcome.ESCALATE, Training.LOST)
    assert reason in failed.reason
    assert (restarted.mode, restarted.outcome, restarted.steps_lost) == (Mode.JOB_RESCHEDULING, Outcome.RECOVERED, 3)
    assert incident.policy_after is SubHealthStrategy.IGNORE


async def test_the_report_of_the_pause_counts_until_the_last_moment_of_its_fifteen_minutes(temporal: WorkflowEnvironment) -> None:
    """Nothing is given up 5 s before the limit, and a report that comes then is taken."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.skip(ALMOST)
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.pause()
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert ALMOST.total_seconds() <= _phase(incident, "backup loads, training pauses") < LIMIT.total_seconds()


async def test_the_report_of_the_resumption_counts_until_the_last_moment_of_its_fifteen_minutes(
    temporal: WorkflowEnvironment,
) -> None:
    """Nothing is given up 5 s before the limit, and a report that comes then is taken."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await world.skip(ALMOST)
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.resume()
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert ALMOST.total_seconds() <= _phase(incident, "training resumes") < LIMIT.total_seconds()


@pytest.mark.parametrize(
    ("script", "order", "phase"),
    [
        (Script(pauses=False), "new pod running", "backup loads, training pauses"),
        (Script(resumes=False), "migration", "training resumes"),
    ],
    ids=["pause", "resumption"],
)
async def test_both_limits_are_fifteen_minutes_from_their_order(
    temporal: WorkflowEnvironment, script: Script, order: str, phase: str
) -> None:
    """The phase that failed lasted 15 minutes by the workflow's own clock, no second less and hardly one more."""
    async with training(temporal, a_job(), script) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: order in peer.orders)
        await world.skip(LIMIT)
        incident = await world.restarted()
        assert LIMIT.total_seconds() <= _phase(incident, phase) < LIMIT.total_seconds() + 2


def _phase(incident: Incident, name: str) -> float:
    return next(phase.seconds for phase in incident.ladder[0].phases if phase.name == name)


async def test_with_mindio_a_backup_that_dies_after_the_pause_leaves_the_old_pod_as_the_rescue(
    temporal: WorkflowEnvironment,
) -> None:
    """The old pod is kept, `migration` lets training go on, and the verdict is `ignored`, as is sub-health from then on."""
    async with training(temporal, a_mindio_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "hot switch" in peer.carried_out)  # another order takes the place of one that it has not read
        await world.phase("backup loads, training pauses")
        world.cluster.fail(world.cluster.backup().metadata.name, "uncorrectable memory error")
        await peer.pause()
        await _is_rescued(world, peer, ["hot switch", "migration"], "uncorrectable memory error")


async def test_training_that_went_on_where_it_was_keeps_its_old_pod(temporal: WorkflowEnvironment) -> None:
    """Ours says on which pod it goes on; that counts, also while the backup's end has not reached the cluster yet."""
    async with training(temporal, a_job(), Script(went_on="continue")) as (world, peer):
        await world.fault(sub_health())
        await _is_rescued(world, peer, [*PREPARED, "migration"], "scripted")


async def _is_rescued(world: Harness, peer: ScriptedPeer, orders: list[str], reason: str) -> None:
    old = world.cluster.holder(1)
    incident = await world.incident()
    assert [(v.mode, v.outcome) for v in incident.ladder] == [(Mode.HOT_SWITCH, Outcome.IGNORED)], incident
    assert reason in incident.ladder[0].reason
    assert peer.carried_out == orders
    assert world.cluster.holder(1) == old
    assert f"kill {old.metadata.name}" not in world.cluster.writes
    assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]
    assert incident.policy_after is SubHealthStrategy.IGNORE


async def test_a_backup_that_dies_right_after_the_takeover_leads_to_job_rescheduling(temporal: WorkflowEnvironment) -> None:
    """Training resumed on the backup, which has failed before its old pod is deleted. No report names a faulty rank."""
    job = a_job(limits=Limits(pause_crossing=SOON))
    cluster = ScriptedCluster(job)

    def the_backup_dies(order: str) -> None:
        if order == "migration":
            cluster.fail(cluster.backup().metadata.name, "uncorrectable memory error")

    async with training(temporal, job, Script(on_order=the_backup_dies), cluster) as (world, _peer):
        await world.fault(sub_health())
        incident = await world.restarted()
        assert [(v.mode, v.outcome) for v in incident.ladder] == [
            (Mode.HOT_SWITCH, Outcome.ESCALATE),
            (Mode.JOB_RESCHEDULING, Outcome.RECOVERED),
        ]
        assert "died when it had taken over" in incident.ladder[0].reason
        assert "uncorrectable memory error" in incident.ladder[0].reason


async def test_with_mindio_a_backup_whose_end_crosses_the_report_of_the_pause_is_the_same_case(
    temporal: WorkflowEnvironment,
) -> None:
    """The end of the backup is seen first, and the pause is reported a moment later. Training goes on where it was, not from a
    checkpoint."""
    job = a_mindio_job(limits=Limits(pause_crossing=timedelta(seconds=20)))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "hot switch" in peer.carried_out)
        await _dies_while_loading(world, peer)
        await peer.pause()
        incident = await world.incident()
        assert [(v.mode, v.outcome) for v in incident.ladder] == [(Mode.HOT_SWITCH, Outcome.IGNORED)], incident
        assert peer.carried_out == ["hot switch", "migration"]


async def test_an_order_that_may_have_been_written_is_taken_back(temporal: WorkflowEnvironment) -> None:
    """The gateway died before it confirmed the order. The backup is not started, `stop switch` is ordered, and training does not
    count as untouched."""
    job = a_job(limits=Limits(order=timedelta(seconds=0.6), absence=timedelta(seconds=0.6)))
    tried: list[str] = []

    @activity.defn(name="deliver_order")
    async def written_without_a_word(order: Order) -> None:
        tried.append(order.name)
        raise RuntimeError("the gateway died when it had written the order")

    async with harness(temporal, job) as world:
        await world.tell(ids.Updates.ATTACH, Attachment(queue="gateway/dying", session="s", since=NOW))
        await world.first_step()
        async with Worker(world.client, task_queue="gateway/dying", activities=[written_without_a_word]):
            await world.fault(sub_health())
            incident = await world.incident()
        assert incident.verdict is Outcome.IGNORED
        assert "may have been written all the same, and is taken back" in incident.ladder[0].reason
        assert {"hot switch", "stop switch"} <= set(tried)
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        assert world.cluster.writes == []


class RefusesOnce(ScriptedCluster):
    """Refuses the first deletion of each pod in `undeletable`."""

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        if name in self.undeletable:
            self.undeletable.discard(name)
            raise Invalid(f"pod {name} may not be deleted now")
        await super().ensure_deleted(job_id, name, uid, grace_seconds)


async def test_an_old_pod_that_could_not_be_deleted_is_deleted_at_the_promotion(temporal: WorkflowEnvironment) -> None:
    """An old pod that remains would carry the rank of the promoted pod a second time."""
    job = a_job(limits=Limits(old_pod_deleted=timedelta(seconds=0.4)))
    cluster = RefusesOnce(job)
    old = cluster.holder(1).metadata.name
    cluster.undeletable.add(old)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert old not in cluster.pods_by_name


async def test_a_rank_that_is_carried_twice_does_not_hold_job_rescheduling_back(temporal: WorkflowEnvironment) -> None:
    """Job rescheduling deletes all pods, so that the job is recovered from a lost node. A hot switch is still refused."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.tell(ids.Updates.SIGHTING, Sighting(problems=("pods gpt-1 and gpt-1-hot-0001 both carry pod rank 1",)))
        refused = await (await world.front(force=True)).result()
        assert (refused.outcome, "both carry pod rank 1" in refused.reason) == (Outcome.REFUSED, True)
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_requested_hot_switch_that_fails_leaves_the_owners_policy(temporal: WorkflowEnvironment) -> None:
    """Only the policy that led to the hot switch is lowered: graceExit stays what it is."""
    job = a_job(sub_health=SubHealthStrategy.GRACE_EXIT, limits=Limits(backup_scheduled=SOON))
    async with training(temporal, job) as (world, _peer):
        world.cluster.spare = False
        verdict = await (await world.front(force=True)).result()
        assert (verdict.outcome, verdict.policy_after) == (Outcome.IGNORED, None)
        status = await world.status()
        assert (status.state.policy, status.state.downgrade) == (SubHealthStrategy.GRACE_EXIT, None)
        assert "subHealthyStrategy" not in world.cluster.labels


@pytest.mark.parametrize("by", ["node", "pod"])
async def test_the_end_of_what_was_replaced_is_no_fault_of_the_recovered_job(temporal: WorkflowEnvironment, by: str) -> None:
    """The old node, or the old pod on it, dies while training resumes elsewhere: the job is not restarted for it."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        old = world.cluster.holder(1)
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        of_the_node = node_fault(old.spec.node_name).model_copy(update={"pod_ranks": (1,)})
        await world.fault(of_the_node if by == "node" else pod_fault(old.metadata.name, old.metadata.uid))
        await peer.resume()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        status = await world.status()
        assert (status.state.faults, status.running, status.state.incidents) == ((), None, 1)


async def test_a_node_that_was_left_is_still_a_fault_for_the_other_pods_on_it(temporal: WorkflowEnvironment) -> None:
    """The lost node holds another rank too: the job is restarted."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (0, 1)}))
        await peer.resume()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED


async def test_names_of_backup_pods_do_not_grow(temporal: WorkflowEnvironment) -> None:
    """A pod that moves again gets the number of that incident in the place of the one before."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in (1, 2):
            assert (await (await world.front(force=True)).result()).outcome is Outcome.RECOVERED
            await world.incident(number)
        assert world.cluster.backup().metadata.name == f"{world.job.name}-worker-1-hot-0002"


async def test_a_stream_that_comes_while_a_hot_switch_is_refused_is_a_reason_to_try_again(temporal: WorkflowEnvironment) -> None:
    """The stream comes when the mode has given up waiting, and before its verdict is noted: the sub-health is not forgotten."""
    job = a_job(limits=Limits(order=timedelta(seconds=0.6), absence=timedelta(seconds=0.6)))
    async with harness(temporal, job) as world:
        await world.tell(ids.Updates.ATTACH, Attachment(queue="gateway/killed", session="s", since=NOW))
        await world.first_step()
        await world.fault(sub_health())
        await world.settled(lambda status: status.running is Mode.HOT_SWITCH)
        await world.tell(ids.Updates.ATTACH, Attachment(queue="gateway/killed", session="another", since=NOW))
        assert (await world.incident(1)).verdict in (Outcome.REFUSED, Outcome.IGNORED)
        assert (await world.incident(2)).verdict is Outcome.REFUSED
        assert (await world.judged()).startswith("refused: ")


async def test_a_training_side_that_is_nowhere_is_no_reason_to_touch_anything(temporal: WorkflowEnvironment) -> None:
    """A first order that cannot be delivered ends in `refused`: no pod was created, and the policy stays."""
    job = a_job(limits=Limits(order=timedelta(seconds=0.6), absence=timedelta(seconds=0.6)))
    async with harness(temporal, job) as world:
        await world.tell(ids.Updates.ATTACH, Attachment(queue="gateway/killed", session="s", since=NOW))
        await world.first_step()
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.verdict is Outcome.REFUSED
        assert "could not be reached" in incident.ladder[0].reason
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        assert world.cluster.writes == []


async def test_a_job_that_ends_while_a_switch_fails_was_not_given_up(temporal: WorkflowEnvironment) -> None:
    """No person has to look at a job that trained to its end beside a backup that died: there is nothing to restart any more."""
    job = a_job()
    async with training(temporal, job, Script(pauses=False), cluster := SlowCluster(job)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.fault(pod_fault(cluster.backup().metadata.name, cluster.backup().metadata.uid, backup=True))
        await cluster.asked.wait()
        await world.tell(ids.Updates.END, "the job succeeded")
        cluster.may_delete.set()
        await world.entity.result()
        incident = await world.incident()
        assert incident.verdict is Outcome.CANCELLED
        assert "the job succeeded before the recovery ended" in incident.ladder[-1].reason
        assert "the backup pod failed to run" in incident.ladder[-1].reason
