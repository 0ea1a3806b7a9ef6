"""Platforms that ask for jobs, faults and tracing, on the wire of the original, and the answers that they receive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import grpc
import pytest
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from rekindle import ids
from rekindle.model.fault import FaultReport, Sighting
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.policy.platforms import View
from rekindle.settings import Settings
from rekindle.temporal import Attributes
from tests.fakes.platform_peer import CONFIG, Platform, platform
from tests.support.harness import Harness, a_job, a_mindio_job, harness, node_fault, sub_health
from workers.gateway import fault_service, server, watch
from workers.gateway.job_service import MOST_OF_A_ROLE


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK", 0.05)


@asynccontextmanager
async def asking(env: WorkflowEnvironment, job: Job | None = None) -> AsyncIterator[tuple[Harness, Platform]]:
    """A job whose sub-health is only looked at, and a platform."""
    async with harness(env, job or a_job(sub_health=SubHealthStrategy.IGNORE)) as world, platform(world.gateway.address) as peer:
        await _is_listed(world)
        yield world, peer


async def _is_listed(world: Harness) -> None:
    """Waits until the job is found by its name: the server lists a workflow a moment after its start."""
    query = f"{Attributes.JOB.name} = '{world.job.name}' AND WorkflowId = '{ids.job_workflow(world.job.id)}'"
    async with asyncio.timeout(60):
        while not [run async for run in world.client.list_workflows(query)]:
            await asyncio.sleep(0.05)


async def registered(peer: Platform, role: str = "CCAgent") -> str:
    status = await peer.register_for_jobs(role)
    assert (status.code, status.info) == (200, "registration successful")
    return str(status.clientId)


# ---- fault.Fault


async def test_a_platform_hears_of_a_fault_of_a_job_when_it_comes_and_when_it_goes(temporal: WorkflowEnvironment) -> None:
    """No message is sent twice in a row."""
    async with asking(temporal) as (world, peer):
        status = await peer.register_for_faults(world.job.id)
        assert (status.code, status.info) == (0, "register success")
        heard = peer.faults(world.job.id)
        assert (await heard.next()).signalType == "normal"
        await world.fault(sub_health())
        (node,) = (await heard.next()).nodeFaultInfo
        (device,) = node.faultDevice
        assert (node.nodeName, node.faultLevel) == ("node-1", "SubHealthy")
        assert (device.deviceId, device.deviceType, list(device.faultCodes)) == ("-1", "Node", ["80E18005"])
        assert list(device.faultReason) == ["NPU link is degraded"]
        await world.tell(ids.Updates.REPORT_FAULTS, FaultReport(cleared=("e1",)))
        assert (await heard.next()).signalType == "normal"
        assert [(one.jobId, one.signalType) for one in heard.messages] == [
            (world.job.id, "normal"),
            (world.job.id, "fault"),
            (world.job.id, "normal"),
        ]


async def test_a_question_for_faults_is_answered_with_what_stands(temporal: WorkflowEnvironment) -> None:
    """Subscribers of one job and of all jobs hear it."""
    async with asking(temporal) as (world, peer):
        await world.fault(sub_health(node=f"node-of-{world.job.id}"))
        found = await peer.faults_now(world.job.id)
        assert (found.code, found.faultSignal.jobId) == (200, world.job.id)
        assert [one.nodeName for one in found.faultSignal.nodeFaultInfo] == [f"node-of-{world.job.id}"]
        everywhere = await peer.faults_now("")
        assert (everywhere.code, everywhere.faultSignal.jobId) == (200, "-1")
        assert f"node-of-{world.job.id}" in [one.nodeName for one in everywhere.faultSignal.nodeFaultInfo]


async def test_a_platform_hears_of_the_faults_of_all_jobs_on_one_stream(temporal: WorkflowEnvironment) -> None:
    """The same holds for one that no row of a list shows, since it is only looked at."""
    async with asking(temporal) as (world, peer):
        await peer.register_for_faults("")
        heard = peer.faults("")
        await heard.next()
        name = f"node-of-{world.job.id}"
        await world.fault(sub_health(node=name))
        signal = await heard.next(lambda one: name in [node.nodeName for node in one.nodeFaultInfo])
        assert signal.jobId == "-1"
        await world.tell(ids.Updates.REPORT_FAULTS, FaultReport(cleared=("e1",)))
        await heard.next(lambda one: name not in [node.nodeName for node in one.nodeFaultInfo])


async def test_who_has_not_registered_for_faults_is_refused(temporal: WorkflowEnvironment) -> None:
    """A subscription needs a registration, which counts for one subscription only, as in the original."""
    async with asking(temporal) as (world, peer):
        assert await peer.faults(world.job.id).end() == f"UNKNOWN: jobId={world.job.id} not registered, role=mindie"
        await peer.register_for_faults(world.job.id)
        heard = peer.faults(world.job.id)
        await heard.next()
        heard.call.cancel()
        async with asyncio.timeout(60):
            while await _is_registered(peer, world.job.id):
                pass


async def _is_registered(peer: Platform, job_id: str) -> bool:
    heard = peer.faults(job_id)
    try:
        await heard.next()
    except grpc.aio.AioRpcError:
        return False
    heard.call.cancel()
    return True


@pytest.mark.parametrize(
    ("job_id", "role", "words"),
    [
        ("no-such-job", "mindie", "jobId=no-such-job is not a registered job"),
        ("a/b", "mindie", "jobId: 'a/b' is not accepted"),
        ("no-such-job", "", "role: 0 characters, accepted is"),
    ],
)
async def test_what_cannot_be_registered_for_is_named(temporal: WorkflowEnvironment, job_id: str, role: str, words: str) -> None:
    """The error names the field; a question for it has the contract's code."""
    async with asking(temporal) as (_, peer):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.register_for_faults(job_id, role)
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        assert words in str(refused.value.details())
        answer = await peer.faults_now(job_id, role)
        assert (answer.code, words in answer.info) == (409, True)


async def test_another_registration_for_the_same_job_and_role_ends_the_first_stream(temporal: WorkflowEnvironment) -> None:
    """One of another role stays."""
    async with asking(temporal) as (world, peer):
        for role in ("mindie", "another"):
            await peer.register_for_faults(world.job.id, role)
        first, other = peer.faults(world.job.id), peer.faults(world.job.id, "another")
        await first.next()
        await other.next()
        await peer.register_for_faults(world.job.id)
        assert await first.end() == "ABORTED: another client has registered for this job and role"
        await world.fault(sub_health())
        assert (await other.next()).signalType == "fault"


async def test_a_stream_of_a_job_that_is_over_ends(temporal: WorkflowEnvironment) -> None:
    """The stream sends that the job's faults are over before it ends."""
    async with asking(temporal) as (world, peer):
        await peer.register_for_faults(world.job.id)
        heard = peer.faults(world.job.id)
        await world.fault(sub_health())
        await heard.next(lambda one: one.signalType == "fault")
        await world.tell(ids.Updates.END, "the job succeeded")
        assert (await heard.next()).signalType == "normal"
        assert await heard.end() == f"ABORTED: jobId={world.job.id} is over"


async def test_who_asks_too_often_is_told_so(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wait for their turn; the contract has a code for the others."""
    assert (fault_service.RATE, fault_service.BURST, fault_service.QUEUE) == (10, 10, 50)
    monkeypatch.setattr(fault_service, "BURST", 3)
    monkeypatch.setattr(fault_service, "QUEUE", 2)
    monkeypatch.setattr(fault_service, "RATE", 0.5)
    async with asking(temporal) as (world, peer):
        answers = await asyncio.gather(*(peer.faults_now(world.job.id) for _ in range(10)))
        codes = [one.code for one in answers]
        assert (codes.count(200), codes.count(429)) == (5, 5)


# ---- job.Job


async def test_a_platform_hears_of_jobs_and_of_each_that_changes(temporal: WorkflowEnvironment) -> None:
    """First of all that there are; a job that has its pods runs, and one that succeeded is complete."""
    async with asking(temporal) as (world, peer):
        heard = peer.jobs(await registered(peer))
        first = await heard.next(lambda one: one.jobId == world.job.id)
        told = (first.jobName, first.namespace, first.frameWork, first.jobStatus, first.operator, first.HcclJson)
        assert told == (world.job.name, "default", "pytorch", "pending", "add", "")
        await world.tell(ids.Updates.SIGHTING, Sighting(holders=("aaaaaaaa", "bbbbbbbb"), generation="0"))
        assert (await heard.next(lambda one: one.jobId == world.job.id)).jobStatus == "running"
        await world.tell(ids.Updates.END, "the job succeeded")
        last = await heard.next(lambda one: one.jobId == world.job.id)
        assert (last.jobStatus, last.operator, bool(last.deleteTime)) == ("complete", "delete", True)


async def test_a_list_of_jobs_has_all_of_them_and_then_each_that_changes(temporal: WorkflowEnvironment) -> None:
    """The first message says how many there are."""
    async with asking(temporal) as (world, peer):
        heard = peer.lists_of_jobs(await registered(peer, "FdAgent"), "FdAgent")
        first = await heard.next()
        assert first.JobTotalNum == len(first.jobSummarySignals)
        assert world.job.id in [one.jobId for one in first.jobSummarySignals]
        await world.tell(ids.Updates.SIGHTING, Sighting(holders=("aaaaaaaa", "bbbbbbbb"), generation="0"))
        (changed,) = (
            await heard.next(lambda one: world.job.id in [job.jobId for job in one.jobSummarySignals])
        ).jobSummarySignals
        assert (changed.jobId, changed.jobStatus) == (world.job.id, "running")


async def test_a_job_that_failed_for_good_is_told_as_failed(temporal: WorkflowEnvironment) -> None:
    """The last message of the job has the status `failed` and the operator `delete`."""
    async with asking(temporal) as (world, peer):
        heard = peer.jobs(await registered(peer))
        await heard.next(lambda one: one.jobId == world.job.id)
        await world.tell(ids.Updates.END, "the job failed for good: BackoffLimitExceeded")
        last = await heard.next(lambda one: one.jobId == world.job.id)
        assert (last.jobStatus, last.operator) == ("failed", "delete")


async def test_a_client_that_is_none_of_the_contract_s_is_refused(temporal: WorkflowEnvironment) -> None:
    """The role, the id and the twentieth of a role are refused."""
    async with asking(temporal) as (_, peer):
        with pytest.raises(grpc.aio.AioRpcError, match="role: 'anybody' is not accepted: CCAgent, DefaultUser1"):
            await peer.register_for_jobs("anybody")
        assert "please register first" in await peer.jobs("made-up").end()
        client = await registered(peer)
        assert "is not the one that has registered, CCAgent" in await peer.jobs(client, "FdAgent").end()
        streams = []
        for _number in range(MOST_OF_A_ROLE):
            streams.append(peer.jobs(await registered(peer)))
            await streams[-1].call.initial_metadata()
        ended = await peer.jobs(await registered(peer)).end()
        assert ended == f"UNKNOWN: role: CCAgent has {MOST_OF_A_ROLE} subscriptions, which is the most"


async def test_a_second_stream_of_a_client_ends_the_first(temporal: WorkflowEnvironment) -> None:
    """The client has to register again."""
    async with asking(temporal) as (world, peer):
        client = await registered(peer)
        first = peer.jobs(client)
        await first.next(lambda one: one.jobId == world.job.id)
        second = peer.lists_of_jobs(client)
        await second.next()
        assert await first.end() == "ABORTED: another subscriber took over"
        third = peer.jobs(client)
        await third.next(lambda one: one.jobId == world.job.id)


@pytest.mark.parametrize("kind", ["faults of a job", "faults of all", "jobs", "lists of jobs"])
async def test_streams_of_platforms_end_when_the_gateway_stops(
    temporal: WorkflowEnvironment, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams say why, and do not keep it from stopping."""
    monkeypatch.setattr(server, "GRACE", 3600)
    async with asking(temporal) as (world, peer):
        client = await registered(peer)
        for job_id in (world.job.id, ""):
            await peer.register_for_faults(job_id)
        heard = {
            "faults of a job": lambda: peer.faults(world.job.id),
            "faults of all": lambda: peer.faults(""),
            "jobs": lambda: peer.jobs(client),
            "lists of jobs": lambda: peer.lists_of_jobs(client),
        }[kind]()
        await heard.next()
        await asyncio.wait_for(world.gateway.stop(), 60)
        assert await heard.end() == "ABORTED: the gateway shuts down"


async def test_a_platform_that_reads_slowly_gets_the_newest_of_each_job() -> None:
    """A slow reader costs no more than there are jobs."""
    subscriber = watch.Subscriber(watch.ALL)
    for number in range(1000):
        subscriber.tell(View(id=f"job-{number % 3}", name=f"{number}"))
    assert [one.name for one in await subscriber.news()] == ["999", "997", "998"]
    subscriber.end("over")
    assert await subscriber.news() == []


@workflow.defn(name=ids.Workflows.TRAINING_JOB)
class Strange:
    """A foreign workflow that was started under the name of ours."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name=ids.Queries.STATUS)
    def status(self) -> str:
        return "nonsense"


async def test_a_workflow_that_answers_nonsense_keeps_no_other_job_from_being_told(temporal: WorkflowEnvironment) -> None:
    """The client receives an error that the answer cannot be read. Streams of other jobs go on."""
    async with asking(temporal) as (world, peer):
        name = f"strange-{world.job.id}"
        async with Worker(world.client, task_queue=name, workflows=[Strange], workflow_runner=UnsandboxedWorkflowRunner()):
            handle = await world.client.start_workflow(Strange.run, id=ids.job_workflow(name), task_queue=name)
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be read") as refused:
                await peer.faults_now(name)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            heard = peer.jobs(await registered(peer))
            await heard.next(lambda one: one.jobId == world.job.id)
            await world.tell(ids.Updates.END, "the job succeeded")
            assert (await heard.next(lambda one: one.jobId == world.job.id)).jobStatus == "complete"
            await handle.terminate("the test is over")


# ---- config.Config, and who may ask


@pytest.mark.parametrize("method", ["Register", "SubscribeRankTable"])
async def test_what_is_not_served_says_so_in_words(temporal: WorkflowEnvironment, method: str) -> None:
    """A client of inference jobs learns whom to ask."""
    async with asking(temporal) as (_, peer):
        answer = "Status" if method == "Register" else "RankTableStream"
        heard = peer.listen(f"/config.Config/{method}", CONFIG, "ClientInfo", answer, lambda _: None, jobId="", role="mindie")
        assert (await heard.end()).startswith("UNIMPLEMENTED: config.Config tells the rank tables of inference jobs (MindIE)")


async def test_on_kubernetes_only_platforms_may_ask(temporal: WorkflowEnvironment) -> None:
    """Any pod of any tenant could read which jobs others have."""
    settings = Settings(cluster="kubernetes", platforms=(ip_network("10.0.0.0/8"),))
    async with harness(temporal, a_job()) as world:
        await world.gateway.stop()
        world.gateway.settings = settings
        await world.gateway.start()
        async with platform(world.gateway.address) as peer:
            questions: tuple[Any, ...] = (
                peer.register_for_faults(world.job.id),
                peer.faults_now(world.job.id),
                peer.register_for_jobs(),
                peer.tracing(f"default/{world.job.name}"),
                peer.switch_tracing(f"default/{world.job.name}", Step="on"),
            )
            for question in questions:
                with pytest.raises(grpc.aio.AioRpcError, match="is no platform's address"):
                    await question
            for heard in (peer.faults(world.job.id), peer.jobs("any"), peer.lists_of_jobs("any")):
                assert (await heard.end()).startswith("PERMISSION_DENIED")


# ---- TrainingDataTrace


async def test_what_a_platform_switches_is_kept_and_told_to_the_manager(temporal: WorkflowEnvironment) -> None:
    """The manager that is subscribed now receives the switch, and so does one that subscribes later."""
    async with asking(temporal, a_mindio_job()) as (world, peer), world.peer():
        name, early = f"default/{world.job.name}", peer.told_of_tracing(world.job.id)
        await early.call.initial_metadata()
        assert (await peer.tracing(name)).code == 404
        answer = await peer.switch_tracing(name, Step="on", FP="off")
        assert (answer.code, answer.message) == (200, "successfully changed profiling marker enable status")
        wanted = {"CommunicationOperator": "off", "Step": "on", "SaveCheckpoint": "off", "FP": "off", "DataLoader": "off"}
        for told in (await early.next(), await peer.told_of_tracing(world.job.id).next(), await peer.tracing(name)):
            assert (told.code, {field: getattr(told.profilingSwitch, field) for field in wanted}) == (200, wanted)


@pytest.mark.parametrize(
    ("name", "switches", "code", "words"),
    [
        ("gpt", {"Step": "on"}, 300, "jobNsName: 'gpt' is not accepted: namespace/name"),
        ("default/no-such-job", {"Step": "on"}, 404, "no job default/no-such-job is registered"),
        ("default/{job}", {"Step": "yes"}, 300, "profilingSwitch.Step: 'yes' is not accepted: on or off"),
        ("other/{job}", {"Step": "on"}, 404, "no job other/"),
    ],
)
async def test_a_switch_that_means_nothing_is_refused_by_its_field(
    temporal: WorkflowEnvironment, name: str, switches: dict[str, str], code: int, words: str
) -> None:
    """The answers have the contract's codes."""
    async with asking(temporal, a_mindio_job()) as (world, peer):
        answer = await peer.switch_tracing(name.format(job=world.job.name), **switches)
        assert (answer.code, words in answer.message) == (code, True), answer


async def test_a_job_without_switches_of_tracing_says_so(temporal: WorkflowEnvironment) -> None:
    """Our own training side has none."""
    async with asking(temporal) as (world, peer):
        answer = await peer.switch_tracing(f"default/{world.job.name}", Step="on")
        assert (answer.code, "which has no switches of tracing" in answer.message) == (500, True)
        assert (await peer.tracing(f"default/{world.job.name}")).code == 404


async def test_a_lost_node_is_worse_than_one_that_is_slow(temporal: WorkflowEnvironment) -> None:
    """A node is as bad as the worst of what is wrong with it."""
    async with asking(temporal, a_job(sub_health=SubHealthStrategy.IGNORE, observe=True)) as (world, peer):
        await world.fault(sub_health())
        await world.fault(node_fault("node-1"))
        (node,) = (await peer.faults_now(world.job.id)).faultSignal.nodeFaultInfo
        assert (node.nodeName, node.faultLevel) == ("node-1", "UnHealthy")
