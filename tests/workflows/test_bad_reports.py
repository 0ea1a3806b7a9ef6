"""Reports that make no sense: ranks that the job does not have, and strategies that were not ordered or not configured. Also
faults of which the training side reports nothing. A recovery goes on as if such reports had not come."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import NOW, a_job, a_mindio_job, training
from tests.workflows.support.openings import fields

IN_PLACE, ELSEWHERE = Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING
RECOVERED = Outcome.RECOVERED


def mindio(allows: str) -> Job:
    limits = Limits(settle=timedelta(0), release=timedelta(0), node_lost=timedelta(0))
    return a_mindio_job(annotations={RECOVER_STRATEGY: allows}, limits=limits)


def ours(allows: str) -> Job:
    return a_job(annotations={RECOVER_STRATEGY: allows}, limits=Limits(node_lost=timedelta(0)))


Side = Callable[[str], Job]
BOTH = pytest.mark.parametrize("side", [ours, mindio])


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


@pytest.mark.parametrize(("side", "allows", "mode"), [(ours, "recover", ELSEWHERE), (mindio, "recover-in-place", IN_PLACE)])
async def test_ranks_that_the_job_has_not_are_left_out(
    temporal: WorkflowEnvironment, side: Side, allows: str, mode: Mode
) -> None:
    """Unknown ranks come with the report of the stop and with the offers. They are left out of all orders, and the others are
    mended. A fault report that names one is refused."""
    async with training(temporal, side(allows), Script(finds=(99,))) as (world, peer):
        peer.broken[77] = "1"
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(mode, RECOVERED)]
        assert [fields(order)[2] for order in peer.received[1:]] == [["3:1"], ["3:1"]]
        assert peer.answers.count(409) == 1
        assert set(peer.answers) == {0, 409}


@BOTH
async def test_the_status_of_a_strategy_that_nobody_ordered_answers_nothing(temporal: WorkflowEnvironment, side: Side) -> None:
    """The status is refused with the contract's code, and the status of the ordered strategy is waited for."""
    script = Script(resumes=False, went_on="upgrade")
    async with training(temporal, side("recover-in-place"), script) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.carried_out)
        assert await peer.report_status(0) == 401
        script.went_on = "recover"
        assert await peer.report_status(0) == 0
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]


@BOTH
async def test_an_offer_that_the_owner_did_not_configure_is_not_taken(temporal: WorkflowEnvironment, side: Side) -> None:
    """An offer that means nothing is not taken either. A strategy that is allowed and offered is ordered."""
    script = Script(repairs=("retry", "downgrade", "teleport", "recover"))
    async with training(temporal, side("recover-in-place"), script) as (world, peer):
        await peer.report_fault(3, kind="0")
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert peer.carried_out == (["stop_train", "on_global_rank", "recover"] if side is mindio else ["recover"])


@BOTH
async def test_a_job_that_may_shrink_replaces_a_process_first(temporal: WorkflowEnvironment, side: Side) -> None:
    """The owner allows elastic training, and the training side offers to go on with fewer ranks. A cheaper mode comes first."""
    script = Script(repairs=("downgrade", "recover"))
    async with training(temporal, side("elastic-training,recover-in-place"), script) as (world, peer):
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert {order.changeStrategy for order in peer.received} <= {"", "recover"}


@pytest.mark.parametrize("told", [{"ranks": (3,)}, {"pod_ranks": (1,)}], ids=["a device", "a node"])
@BOTH
async def test_hardware_starts_a_recovery_by_itself(
    temporal: WorkflowEnvironment, side: Side, told: dict[str, tuple[int, ...]]
) -> None:
    """The training side has reported nothing, and learns of the recovery by the order to stop."""
    job = side("recover")
    cluster = TheirCluster(job)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.look()
        cluster.node_names.remove("node-1")
        lost = Fault(id="h1", kind=FaultKind.NODE, node="node-1", message="NPU 3 is lost", seen_at=NOW, source="test")
        await world.fault(lost.model_copy(update=told))
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert [one.pod_rank for one in incident.ladder[0].switched] == [1]
        assert fields(peer.received[0])[2] == [f"{rank}:1" for rank in told.get("ranks", (2, 3))]
