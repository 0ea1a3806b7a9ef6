"""How news reach a job's workflow, on a real Temporal server; and the watcher as a process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.ids import Queries, job_workflow
from rekindle.model import keys
from rekindle.model.cluster import JobObject
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.state import JobStatus
from rekindle.policy.intake import Tell, TellKind
from rekindle.temporal import plugin
from tests.support.cluster import environment, job_object
from tests.support.scripted_cluster import ScriptedCluster
from workers.control import control_worker
from workers.telling import JobUnknown, TemporalTeller

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOBODY = "127.0.0.1:1"
"""Where no Temporal server is."""


def a_job(uid: str, **labels: str) -> JobObject:
    job = job_object(labels=labels)
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


def sick(episode: str, rank: int = 0) -> Tell:
    fault = Fault(
        episode=episode,
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(rank,),
        ranks=(rank,),
        node="node-0",
        seen_at=datetime(2026, 1, 1, tzinfo=UTC),
        source="test",
    )
    return Tell(kind=TellKind.FAULT, fault=fault)


REGISTER = Tell(kind=TellKind.REGISTER)
END = Tell(kind=TellKind.END, reason="the job was deleted")


@pytest_asyncio.fixture(loop_scope="session")
async def client(temporal: WorkflowEnvironment) -> AsyncIterator[Client]:
    """A server with a control worker."""
    with temporal.with_time_skipping_disabled():
        async with control_worker(temporal.client, ScriptedCluster(job_of(a_job("any"), Limits())), SandboxedWorkflowRunner()):
            yield temporal.client


async def status(client: Client, job: JobObject) -> JobStatus:
    handle = client.get_workflow_handle(job_workflow(job.metadata.uid))
    answer: JobStatus = await handle.query(Queries.STATUS, result_type=JobStatus)
    return answer


async def test_a_job_is_registered_told_and_ended(client: Client) -> None:
    """Registration starts the job's workflow, news arrive there once however often they are told, and the end ends it."""
    teller, job = TemporalTeller(client, Limits()), a_job("told-1")
    uid = job.metadata.uid
    for _ in range(2):
        await teller.tell(uid, REGISTER, job)
        await teller.tell(uid, sick("e1"), job)
    sub_healthy = (await status(client, job)).state.sub_healthy
    assert [pod.fault.episode for pod in sub_healthy] == ["e1"]
    await teller.tell(uid, Tell(kind=TellKind.CLEARED, episode="e1"), job)
    assert (await status(client, job)).state.sub_healthy == ()
    await teller.tell(uid, END, None)
    handle = client.get_workflow_handle(job_workflow(uid))
    assert await handle.result() == "the job was deleted"
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_later_watcher_brings_newer_labels(client: Client) -> None:
    """Another watcher's registration is another update: what changed of the job since arrives."""
    newer = {keys.PROCESS_RECOVER_ENABLE: "on"}
    job, changed = a_job("told-2"), a_job("told-2", **newer)
    await TemporalTeller(client, Limits()).tell("told-2", REGISTER, job)
    await TemporalTeller(client, Limits()).tell("told-2", REGISTER, changed)
    assert (await status(client, changed)).state.job.labels == newer
    await TemporalTeller(client, Limits()).tell("told-2", END, None)


async def test_news_of_an_unknown_job_start_nothing(client: Client) -> None:
    """Without a workflow a fault and an end are JobUnknown."""
    teller = TemporalTeller(client, Limits())
    for tell in (sick("e1"), END):
        with pytest.raises(JobUnknown):
            await teller.tell("told-never", tell, None)


async def test_what_is_wrong_is_refused_with_its_field(client: Client) -> None:
    """A rank that the job does not have is refused by the workflow, a label without meaning before it is sent."""
    teller, job = TemporalTeller(client, Limits()), a_job("told-3")
    await teller.tell("told-3", REGISTER, job)
    with pytest.raises(Refused, match="ranks: 7"):
        await teller.tell("told-3", sick("e1", rank=7), job)
    with pytest.raises(BadInput, match=keys.SUB_HEALTHY_STRATEGY):
        await teller.tell("told-3", REGISTER, a_job("told-3", **{keys.SUB_HEALTHY_STRATEGY: "maybe"}))
    await teller.tell("told-3", END, None)


async def test_nobody_answers_where_no_server_is() -> None:
    """Without a Temporal server everything is Unavailable, and may be tried again."""
    lazy = await Client.connect(NOBODY, plugins=[plugin()], lazy=True)
    for tell in (REGISTER, sick("e1")):
        with pytest.raises(Unavailable):
            await TemporalTeller(lazy, Limits()).tell("told-4", tell, a_job("told-4"))


async def test_a_telling_that_blocks_can_be_cancelled(temporal: WorkflowEnvironment) -> None:
    """Without a control worker an update waits; a watcher that stops does not wait with it."""
    telling = asyncio.create_task(TemporalTeller(temporal.client, Limits()).tell("told-5", REGISTER, a_job("told-5")))
    handle = temporal.client.get_workflow_handle(job_workflow("told-5"))
    done, _ = await asyncio.wait({telling}, timeout=0.5)
    assert not done
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    await handle.terminate()


async def test_the_watcher_waits_for_everybody_and_stops_when_told(tmp_path: Path) -> None:
    """Without a cluster and without Temporal the watcher is ready all the same, and SIGTERM ends it with code 0."""
    settings = {"REKINDLE_STATE_DIR": str(tmp_path), "TEMPORAL_ADDRESS": NOBODY}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "workers.watcher"), env={**environment(), **settings}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()) == b"ready watcher\n"
    process.terminate()
    assert await process.wait() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["watcher.json"]
