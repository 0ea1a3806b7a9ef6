"""News reach a job's workflow on a real Temporal server, and the watcher runs as a process."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import Refused, Unavailable
from rekindle.ids import job_workflow
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.state import Registration
from rekindle.policy.detection.watcher_updates import End, News, Register, Sighted
from rekindle.worker_plugin import plugin
from tests.fakes.scripted_job import HELD, scripted_jobs
from tests.support import job_views
from tests.support.cluster import environment
from workers.watcher.job_workflows import JobUnknown, TemporalJobWorkflows

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOBODY = "127.0.0.1:1"
"""An address without a Temporal server."""

END = End(reason="the job was deleted")


def a_registration(uid: str, **wishes: object) -> Register:
    job = job_of(job_views.job(**wishes), Limits())  # type: ignore[arg-type]
    return Register(registration=Registration(job=job.model_copy(update={"id": uid}), sighting=Sighting(holders=("a", ""))))


def a_sighting(*problems: str) -> Sighted:
    return Sighted(sighting=Sighting(holders=("a", "b"), problems=problems))


@pytest_asyncio.fixture(loop_scope="session")
async def client(temporal: WorkflowEnvironment) -> AsyncIterator[Client]:
    """Yields the client of a server with a worker."""
    with temporal.with_time_skipping_disabled():
        async with scripted_jobs(temporal.client):
            yield temporal.client


async def held(client: Client, uid: str) -> list[Registration | Sighting]:
    """Returns what the job's workflow accepted, in order."""
    handle = client.get_workflow_handle(job_workflow(uid))
    answer: list[Registration | Sighting] = await handle.query(HELD, result_type=list[Registration | Sighting])
    return answer


async def send(client: Client, uid: str, news: News, update_id: str = "") -> None:
    await TemporalJobWorkflows(client).send(uid, news, update_id or uuid.uuid4().hex)


async def test_a_job_is_registered_told_and_ended(client: Client) -> None:
    """Registration starts the job's workflow, news arrive there once however often they are sent, and the end ends it."""
    register, sighted = a_registration("told-1"), a_sighting()
    for _ in range(2):
        await send(client, "told-1", register, "first")
        await send(client, "told-1", sighted, "second")
    assert await held(client, "told-1") == [register.registration, sighted.sighting]
    await send(client, "told-1", END)
    handle = client.get_workflow_handle(job_workflow("told-1"))
    assert await handle.result() == "the job was deleted"
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_job_that_lives_is_registered_again(client: Client) -> None:
    """Another registration is another update of the same workflow."""
    for wishes in ({}, {"labels": {"framework": "mindspore"}}):
        await send(client, "told-2", a_registration("told-2", **wishes))
    frameworks = [one.job.framework for one in await held(client, "told-2") if isinstance(one, Registration)]
    assert frameworks == ["pytorch", "mindspore"]
    await send(client, "told-2", END)


async def test_a_job_that_ended_can_begin_again(client: Client) -> None:
    """A job that ended can begin again, such as one whose workflow was ended by mistake or lost."""
    for _ in range(2):
        await send(client, "told-3", a_registration("told-3"))
        assert len(await held(client, "told-3")) == 1
        await send(client, "told-3", END)


async def test_news_of_an_unknown_job_start_nothing(client: Client) -> None:
    """A sighting and an end of a job without a workflow are JobUnknown, and start nothing."""
    for news in (a_sighting(), END):
        with pytest.raises(JobUnknown):
            await send(client, "told-never", news)


async def test_a_refusal_has_its_reason(client: Client) -> None:
    """A refusal has the workflow's own reason."""
    await send(client, "told-4", a_registration("told-4"))
    with pytest.raises(Refused, match="holders: two are too many"):
        await send(client, "told-4", a_sighting("refuse"))
    await send(client, "told-4", END)


async def test_nobody_answers_where_no_server_is() -> None:
    """A message without a Temporal server is Unavailable, and may be retried."""
    lazy = await Client.connect(NOBODY, plugins=[plugin()], lazy=True)
    for news in (a_registration("told-5"), a_sighting(), END):
        with pytest.raises(Unavailable):
            await send(lazy, "told-5", news)


async def test_a_telling_that_blocks_can_be_cancelled(temporal: WorkflowEnvironment) -> None:
    """A message that waits for a worker can be cancelled, so that a watcher can stop."""
    telling = asyncio.create_task(send(temporal.client, "told-6", a_registration("told-6")))
    handle = temporal.client.get_workflow_handle(job_workflow("told-6"))
    done, _ = await asyncio.wait({telling}, timeout=0.5)
    assert not done
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    await handle.terminate()


async def test_the_watcher_waits_for_everybody_and_stops_when_told(short_path: Path) -> None:
    """A watcher without a cluster and without Temporal is ready all the same. SIGTERM ends it with code 0, and it has written
    nothing."""
    settings = {"REKINDLE_STATE_DIR": str(short_path), "TEMPORAL_ADDRESS": NOBODY}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "workers.watcher"), env={**environment(), **settings}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()) == b"ready watcher\n"
    process.terminate()
    assert await process.wait() == 0
    assert list(short_path.iterdir()) == []


async def test_a_workflow_that_was_terminated_is_missed(client: Client) -> None:
    """A running workflow is not missed, however new it is; neither the list, which is late, nor the name alone decides."""
    for uid in ("lost-1", "lost-2"):
        await send(client, uid, a_registration(uid))
    await client.get_workflow_handle(job_workflow("lost-1")).terminate("by hand")
    jobs = TemporalJobWorkflows(client)
    while (missed := await jobs.lost(["lost-1", "lost-2", "never-heard-of"])) == ["never-heard-of"]:  # the list still shows it
        await asyncio.sleep(0)
    assert missed == ["lost-1", "never-heard-of"]


async def test_recoveries_that_run_are_listed_without_operations_and_requests(client: Client) -> None:
    """A front only passes a request on, and a stress test is no recovery. One that has ended is not listed."""
    ids = {
        "recovery/default.gpt/3-in-place-recovery/job-1": "InPlaceRecovery",
        "recovery/default.gpt/4-hot-switch/job-2": "HotSwitch",
        "recovery/default.gpt/5-stress-test/job-3": "StressTest",
        "request/job-1/1": "HotSwitch",
    }
    started = [await client.start_workflow(name, id=one, task_queue="nobody") for one, name in ids.items()]
    jobs, (expected, ended) = TemporalJobWorkflows(client), list(ids)[:2]
    async with asyncio.timeout(60):
        while not {expected, ended} <= await jobs.recovering():  # the list is late
            await asyncio.sleep(0)
        await started[1].terminate("by hand")
        while ended in await jobs.recovering():
            await asyncio.sleep(0)
    assert await jobs.recovering() & set(ids) == {expected}
    for one in (started[0], *started[2:]):
        await one.terminate("the test is over")
