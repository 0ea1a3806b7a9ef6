"""The trace of an incident, as a collector receives it, on a real Temporal server with a scripted training side."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import WATCHER, Fault
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode
from rekindle_wire import PROTOCOL, TRACE
from rekindle_wire.training_pb2 import Interval, ProgressReport, SpansReport
from rekindle_wire.training_pb2_grpc import ProgressStub
from tests.fakes.collector import Collector, Received
from tests.support.harness import RESUMES, a_job, harness, node_fault, sub_health, training

if TYPE_CHECKING:
    from rekindle_wire.training_pb2_grpc import ProgressAsyncStub

MILLISECONDS = 1e-3
UNSEEN = 0.2
"""Longest time of an incident in seconds that no span explains. On a busy machine, a step follows another that much later."""


def seen(fault: Fault) -> Fault:
    """Returns the fault as the watcher sees it now."""
    return fault.model_copy(update={"seen_at": datetime.now(UTC), "source": WATCHER})


def root_of(spans: Sequence[Received]) -> Received:
    """Returns the only root; all other spans are under it."""
    (root,) = [span for span in spans if not span.parent]
    ids = [span.id for span in spans]
    assert len(ids) == len(set(ids))
    assert {span.parent for span in spans} <= {*ids, ""}
    return root


def unexplained(spans: Sequence[Received]) -> list[tuple[float, float]]:
    """Returns the intervals of the root, after its beginning, that no span without spans under it covers."""
    root, parents = root_of(spans), {span.parent for span in spans}
    found, at = [], root.began
    for leaf in sorted((span for span in spans if span.id not in parents), key=lambda span: span.began):
        if leaf.began - at > UNSEEN:
            found.append((at - root.began, leaf.began - at))
        at = max(at, leaf.ended)
    return [*found, (at - root.began, root.ended - at)] if root.ended - at > UNSEEN else found


def fits(spans: Sequence[Received], incident: Incident) -> None:
    """Asserts that the trace is one tree without gaps, whose length is that of the post-mortem and the detection before it."""
    root = root_of(spans)
    assert root.attributes["rekindle.incident.seconds"] == incident.seconds
    assert root.ended - incident.started_at.timestamp() == pytest.approx(incident.seconds, abs=MILLISECONDS)
    detected = [span for span in spans if span.name == "detection"]
    assert root.began == pytest.approx(
        min([span.began for span in detected] or [incident.started_at.timestamp()]), abs=MILLISECONDS
    )
    assert not unexplained(spans)


def under(spans: Sequence[Received], parent: Received) -> list[str]:
    return [span.name for span in sorted(spans, key=lambda span: span.began) if span.parent == parent.id]


def named(spans: Sequence[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


async def test_a_hot_switch_is_one_tree(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """Spans lead from the sight of the fault to the verdict: decision, mode, phases, and in them activities, orders, reports."""
    async with training(temporal, a_job()) as (world, _):
        await world.fault(seen(sub_health()))
        incident = await world.incident()
        spans = await traced.trace()
    fits(spans, incident)
    root = root_of(spans)
    assert under(spans, root)[:3] == ["detection", "decision", "hot switch"]
    mode = named(spans, "hot switch")
    phases = [phase.name for phase in incident.ladder[0].phases]
    assert [name for name in under(spans, mode) if name in phases] == phases
    prepares = named(spans, "training side prepares")
    assert "order hot switch" in under(spans, prepares)
    assert named(spans, "order hot switch").service == "rekindle-gateway"
    assert named(spans, "training side answers: strategies").service == "rekindle-gateway"


async def test_each_mode_of_an_incident_is_in_its_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """A mode that escalates is an error with its reason, which is the reason for the decision about the next one."""
    async with harness(temporal, a_job()) as world, world.peer():
        await world.first_step()
        await world.fault(node_fault("node-1").model_copy(update={"seen_at": datetime.now(UTC)}))
        incident = await world.restarted()
        spans = await traced.trace()
    fits(spans, incident)
    modes = [verdict.mode for verdict in incident.ladder]
    assert Mode.JOB_RESCHEDULING in modes
    assert [name for name in under(spans, root_of(spans)) if name in set(modes)] == modes
    decisions = sorted((span for span in spans if span.name == "decision"), key=lambda span: span.began)
    assert [span.attributes["rekindle.mode"] for span in decisions] == modes
    assert [span.attributes["rekindle.reason"] for span in decisions[1:]] == [one.reason for one in incident.ladder[:-1]]


async def test_another_control_worker_goes_on_in_the_same_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """The worker ends while a backup pod starts, and another one replays the mode. Each span is there once."""
    async with training(temporal, a_job()) as (world, _):
        world.cluster.backup_starts = False
        await world.fault(seen(sub_health()))
        await world.phase("backup pod runs")
        await world.control.stop()
        world.cluster.run(world.cluster.backup().metadata.name)
        await world.control.start()
        incident = await world.incident()
        spans = await traced.trace()
    fits(spans, incident)
    assert named(spans, f"wait until {incident.ladder[0].switched[0].after.name} runs").attributes["rekindle.tries"] != 1


async def test_waits_of_a_mode_that_is_terminated_are_in_the_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """The wait for the backup pod has no event that ends it. Its span ends with the mode."""
    async with training(temporal, a_job()) as (world, _):
        world.cluster.backup_starts = False
        await world.fault(seen(sub_health()))
        await world.phase("backup pod runs")
        await (await world.running()).terminate("by hand")
        incident = await world.restarted()
        spans = await traced.trace()
    fits(spans, incident)
    ended = named(spans, "hot switch").ended
    (wait,) = [span for span in spans if span.error == "terminated"]
    assert (wait.attributes["rekindle.activity"], wait.ended) == ("await_running", ended)


async def test_spans_of_the_training_side_are_in_the_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """The answer to a report of ours names the recovery, and the spans that follow are under it, each under the one around it."""
    async with harness(temporal, a_job()) as world, world.peer() as peer:
        await world.first_step()
        await world.fault(node_fault("node-1").model_copy(update={"seen_at": datetime.now(UTC)}))
        await world.phase(RESUMES)
        async with grpc.aio.insecure_channel(peer.address) as channel:
            stub: ProgressAsyncStub = ProgressStub(channel)
            report = ProgressReport(job_id=world.job.id, incarnation="life-2", step=4, steps_lost=3, protocol=PROTOCOL)
            call = stub.ReportProgress(report)
            assert (await call).code == 0
            trace = dict(await call.trailing_metadata() or ())[TRACE]
            now = time.time_ns()
            whole = Interval(name="rebuild", began=now - 3000, ended=now)
            of_rank = Interval(name="rank 2: rebuild", began=now - 2000, ended=now, rank=2, within=1, error="RankLost")
            told = SpansReport(job_id=world.job.id, trace=str(trace), intervals=[whole, of_rank], protocol=PROTOCOL)
            assert (await stub.ReportSpans(told)).code == 0
            foreign = SpansReport(job_id=world.job.id, trace=f"00-{1:032x}-{1:016x}-01", protocol=PROTOCOL)
            assert "trace: " in (await stub.ReportSpans(foreign)).info
        await world.first_step("life-2", steps_lost=3)  # of another subscription: the one here is of the life before
        incident = await world.incident()
        await traced.trace()
        spans = await traced.until(lambda spans: any(span.service == "rekindle-rank" for span in spans))
    fits(spans, incident)
    rebuild, rank = named(spans, "rebuild"), named(spans, "rank 2: rebuild")
    assert (rebuild.parent, rebuild.service) == (named(spans, "job rescheduling").id, "rekindle-manager")
    assert (rank.parent, rank.attributes) == (rebuild.id, {"rekindle.rank": 2, "error.type": "RankLost"})


async def test_a_training_side_is_asked_for_no_spans_without_traces(temporal: WorkflowEnvironment) -> None:
    """Answers name no trace where traces are off."""
    async with harness(temporal, a_job()) as world, world.peer() as peer, grpc.aio.insecure_channel(peer.address) as channel:
        stub: ProgressAsyncStub = ProgressStub(channel)
        call = stub.ReportProgress(ProgressReport(job_id=world.job.id, incarnation="life-1", step=1, protocol=PROTOCOL))
        assert (await call).code == 0
        assert TRACE not in dict(await call.trailing_metadata() or ())
