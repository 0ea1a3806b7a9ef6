"""Whom a report reaches: the recovery that gave the last order on the stream, otherwise the one that the job's workflow names."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import ErrorTypes, Updates, recovery_workflow
from rekindle.model.dialogue import Receipt, Report, ReportKind
from rekindle.model.fault import FaultReport
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.modes.cases import describe
from rekindle_wire import REPORT
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, harness, register, sub_health, training
from workers.gateway import messages
from workers.gateway.job_workflows import Jobs, Rejected

STATUS = Report(kind=ReportKind.STATUS)


async def refusal(world: Harness) -> tuple[str | None, str]:
    """Returns type and message with which the job's workflow refuses a report now."""
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await world.tell(Updates.REPORT, STATUS)
    assert isinstance(raised.value.cause, ApplicationError)
    return raised.value.cause.type, raised.value.cause.message


async def until_storing(world: Harness) -> None:
    async with asyncio.timeout(60):
        while not world.gateway.storing:
            await asyncio.sleep(0.01)


async def test_a_gateway_that_was_restarted_behind_an_order_finds_who_waits_for_the_report(temporal: WorkflowEnvironment) -> None:
    """The restarted gateway gave no order and has no stream when the report comes. The job's workflow names the recovery, which
    goes on."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.cut()
        await world.gateway.stop()
        await world.gateway.start()
        assert await refusal(world) == (ErrorTypes.REPORT_ELSEWHERE, recovery_workflow(world.job, 1, Mode.HOT_SWITCH))
        await peer.pause()
        assert peer.answers == [0]
        await peer.attach()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_report_between_two_modes_waits_for_the_next_one(temporal: WorkflowEnvironment) -> None:
    """The recovery that gave the last order has ended, and none runs yet: the report is held, and the next mode answers it."""
    async with harness(temporal, a_job()) as world, world.peer(Script(offers=("exit",))) as peer:
        await world.first_step()
        world.cluster.takes_metadata.clear()
        await world.fault(sub_health())
        await asyncio.wait_for(world.cluster.metadata_is_written.wait(), 60)
        assert await refusal(world) == (ErrorTypes.BETWEEN_MODES, "between two modes, try again")
        before = len(peer.answers)
        reporting = asyncio.create_task(peer.report_status(0))
        await until_storing(world)
        assert len(peer.answers) == before
        world.cluster.takes_metadata.set()
        assert await reporting == 401
        following = recovery_workflow(world.job, 1, Mode.JOB_RESCHEDULING)
        await world.settled(lambda status: status.recovery == following)
        assert await refusal(world) == (ErrorTypes.REPORT_ELSEWHERE, following)
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_fault_that_is_told_while_the_jobs_workflow_is_lost_is_kept_until_there_is_one_again(
    temporal: WorkflowEnvironment,
) -> None:
    """The pods of the job run, and nothing else reports the fault. The gateway holds the job's stream, so that the job is not
    unknown. It offers the stream first, since that decides what can be done about the fault."""
    async with training(temporal, a_job()) as (world, peer):
        await world.entity.terminate("by mistake")
        reporting = asyncio.create_task(_report_fault(world, 2))
        await until_storing(world)
        await register(world.client, world.job)
        assert await reporting == 0
        assert (await world.status()).state.attachment
        assert "process rank 2: reported by the training side" in (await world.restarted()).summary
        assert peer.orders == []


@pytest.mark.parametrize("kind", [ErrorTypes.JOB_UNKNOWN, ErrorTypes.NOT_REGISTERED])
async def test_a_report_waits_for_a_workflow_that_is_lost(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery that waits for it goes on, and only the next workflow of the job knows its name."""
    refusals = [Rejected(ErrorTypes.REPORT_ELSEWHERE, "recovery"), Rejected(kind, "the job's workflow is lost")]
    asked: list[str] = []

    async def update(_: Jobs, workflow_id: str, *__: object) -> Receipt:
        asked.append(workflow_id)
        if refusals and workflow_id == "job/job-1":
            raise refusals.pop()
        return Receipt(info="taken")

    monkeypatch.setattr(Jobs, "_update", update)
    report, jobs = Report(kind=ReportKind.STATUS), Jobs(Mock(spec=Client))
    assert (await jobs.report("job-1", report, "", "", is_here=True)).info == "taken"
    assert asked == ["job/job-1", "job/job-1", "recovery"]
    refusals.append(Rejected(kind, "nobody knows the job"))
    with pytest.raises(Rejected):
        await jobs.report("job-1", report, "", "")


async def test_a_fault_is_taken_although_its_stream_was_overtaken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway attaches the stream that the workflow misses. The fault is not lost if another gateway's stream was attached
    first."""
    refusals = [Rejected(ErrorTypes.ATTACHMENT_MISSING, "the job's stream has to be attached before its faults are reported")]

    async def update(*_: object) -> Receipt:
        if refusals:
            raise refusals.pop()
        return Receipt(info="taken")

    async def overtaken() -> None:
        raise Rejected(ErrorTypes.ATTACHMENT_OVER, "another subscriber took over")

    monkeypatch.setattr(Jobs, "_update", update)
    jobs = Jobs(Mock(spec=Client))
    assert (await jobs.report_faults("job-1", FaultReport(), overtaken, "")).info == "taken"


async def test_a_fault_of_a_job_that_nobody_knows_is_refused_at_once(temporal: WorkflowEnvironment) -> None:
    """The gateway has no stream of the job. The answer to the client is that it is not registered."""
    async with harness(temporal, a_job()) as world:
        await world.entity.terminate("by mistake")
        assert await _report_fault(world, 2) == 400


@pytest.mark.parametrize(("ranks", "words"), [((2,), "process rank 2"), ((1, 2), "process ranks 1, 2")])
def test_a_fault_of_processes_reads_well(ranks: tuple[int, ...], words: str) -> None:
    """The description of the fault names one rank, or several."""
    named = [wire.FaultRank(rankId=str(rank), faultType="1") for rank in ranks]
    fault = messages.process_fault(wire.ProcessFaultRequest(jobId="job", faultRanks=named), "session", datetime.now(UTC))
    assert describe(fault) == f"{words}: reported by the training side"


async def _report_fault(world: Harness, rank: int) -> int:
    message = wire.ProcessFaultRequest(jobId=world.job.id, faultRanks=[wire.FaultRank(rankId=str(rank), faultType="1")])
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub: Any = RecoverStub(channel)
        return int((await stub.ReportProcessFault(message)).code)


async def test_a_report_of_ours_that_is_sent_again_is_one_fault(temporal: WorkflowEnvironment) -> None:
    """A report that is repeated after the fault was mended, as after a timeout, is accepted and begins no other incident. A
    report with another id does."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        peer.broken[3] = "1"
        message = wire.ProcessFaultRequest(jobId=world.job.id, faultRanks=[wire.FaultRank(rankId="3", faultType="1")])
        async with grpc.aio.insecure_channel(world.gateway.address) as channel:
            stub = RecoverStub(channel)
            first = await stub.ReportProcessFault(message, metadata=((REPORT, "report1"),))
            assert (await world.incident()).verdict is Outcome.RECOVERED
            second = await stub.ReportProcessFault(message, metadata=((REPORT, "report1"),))
            assert (first.code, second.code) == (0, 0)
            assert (await world.status()).state.incidents == 1
            await stub.ReportProcessFault(message, metadata=((REPORT, "report2"),))
        await world.incident(2)


async def test_a_report_that_a_stopping_worker_has_not_looked_at_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server rejects the report and no workflow has refused it, so that the gateway sends it again under the same id."""
    rejected = [WorkflowUpdateFailedError(ApplicationError("it wasn't processed by worker", type="UnprocessedUpdate"))]
    sent: list[str] = []

    async def execute(*_: object, **named: Any) -> Receipt:
        sent.append(named["id"])
        if rejected:
            raise rejected.pop()
        return Receipt(info="taken")

    client = Mock(spec=Client)
    client.get_workflow_handle.return_value.execute_update = execute
    receipt = await Jobs(client).report("job-1", Report(kind=ReportKind.STATUS), "recovery", "report-1")
    assert (receipt.info, sent) == ("taken", ["report-1", "report-1"])
