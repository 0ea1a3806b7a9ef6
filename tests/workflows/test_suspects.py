"""Ranks that a stress test finds computing wrongly leave their nodes, whatever can be done next."""

from datetime import timedelta

from temporalio.testing import WorkflowEnvironment

from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import Harness, a_job
from tests.workflows.test_stress_test import BAD, begun, listening


async def found_without_a_cluster(world: Harness, peer: ScriptedPeer) -> None:
    """Runs a stress test that finds two ranks. The cluster does not answer, so that no node is isolated."""
    await begun(world)
    await peer.until(lambda: bool(peer.tests))
    world.cluster.unreachable = True
    await peer.report_tested({2: (0,), 3: (0,)})
    await world.phase("what was found is judged")
    await world.skip(timedelta(minutes=2, seconds=1))


async def test_where_the_cluster_does_not_answer_the_ranks_are_mended_all_the_same(temporal: WorkflowEnvironment) -> None:
    """The nodes of the ranks are not known, so that none is isolated. The pods are replaced as soon as the cluster answers."""
    async with listening(temporal, a_job(annotations={}), Script(tests=False, stress_codes=BAD)) as (world, peer):
        await found_without_a_cluster(world, peer)
        await world.settled(lambda status: status.running is Mode.PROCESS_RESCHEDULING)
        world.cluster.unreachable = False
        incident = await world.incident()
        assert incident.ladder[1].mode is Mode.PROCESS_RESCHEDULING
        assert "no node was isolated" in incident.ladder[0].reason


async def test_suspect_ranks_leave_nodes_where_the_owner_allows_repairs_in_place_only(temporal: WorkflowEnvironment) -> None:
    """A repair in place would train on with the device that computes wrongly. All pods are recreated."""
    job = a_job(annotations={RECOVER_STRATEGY: "retry,recover-in-place"})
    async with listening(temporal, job, Script(tests=False, stress_codes=BAD)) as (world, peer):
        await found_without_a_cluster(world, peer)
        status = await world.settled(lambda status: status.running not in (None, Mode.STRESS_TEST))
        world.cluster.unreachable = False
        assert status.running is Mode.JOB_RESCHEDULING


async def test_suspect_ranks_leave_nodes_where_no_other_pod_can_take_their_place(temporal: WorkflowEnvironment) -> None:
    """Process rescheduling finds no spare node. A repair in place does not follow."""
    job = a_job(annotations={}, limits=Limits(replacement_scheduled=timedelta(seconds=1)))
    async with listening(temporal, job, Script(tests=False, stress_codes=BAD)) as (world, peer):
        await found_without_a_cluster(world, peer)
        await world.settled(lambda status: status.running is Mode.PROCESS_RESCHEDULING)
        world.cluster.spare = world.cluster.unreachable = False
        status = await world.settled(lambda status: status.running not in (None, Mode.PROCESS_RESCHEDULING))
        assert status.running is Mode.JOB_RESCHEDULING
