"""The hot switch as a procedure: real workflows on a real Temporal server, a scripted training side over real gRPC."""

from datetime import timedelta

from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.fault import FaultReport
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.support.harness import a_job, harness, sub_health


async def test_a_sub_healthy_pod_moves_to_a_spare_node(temporal: WorkflowEnvironment) -> None:
    """All nine steps run in order, each order is carried out once, and the policy stays hotSwitch."""
    async with harness(temporal, a_job()) as world, world.peer() as peer:
        await world.first_step()
        old = world.cluster.holder(1)
        await world.tell(ids.Updates.REPORT_FAULTS, FaultReport(faults=(sub_health(),)))
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED, incident
        assert [verdict.mode for verdict in incident.ladder] == [Mode.HOT_SWITCH]
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert world.cluster.holder(1).metadata.uid != old.metadata.uid
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        assert peer.answers == [0, 0]


async def test_no_report_of_the_pause_within_its_limit_leads_to_job_rescheduling(temporal: WorkflowEnvironment) -> None:
    """The mode escalates after 15 minutes without the report of the pause, and sub-health is ignored from then on."""
    async with harness(temporal, a_job()) as world, world.peer(Script(pauses=False)) as peer:
        await world.first_step()
        await world.tell(ids.Updates.REPORT_FAULTS, FaultReport(faults=(sub_health(),)))
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.skip(timedelta(minutes=14, seconds=50))
        assert (await world.status()).running is Mode.HOT_SWITCH
        await world.skip(timedelta(seconds=15))
        await peer.until(lambda: "stop switch" in peer.orders)
        await world.phase("training resumes from its last checkpoint")
        await world.first_step("life-2", steps_lost=3)
        incident = await world.incident()
        assert [(v.mode, v.outcome) for v in incident.ladder] == [
            (Mode.HOT_SWITCH, Outcome.ESCALATE),
            (Mode.JOB_RESCHEDULING, Outcome.RECOVERED),
        ]
        assert incident.policy_after is SubHealthStrategy.IGNORE
        assert incident.ladder[-1].steps_lost == 3
        assert world.cluster.labels["subHealthyStrategy"] == "ignore"
