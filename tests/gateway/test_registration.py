"""Init, Register and reports over real gRPC: the contract's codes, and bad messages refused by field."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from prometheus_client.parser import text_string_to_metric_families
from temporalio.testing import WorkflowEnvironment

from rekindle import __version__, ids
from rekindle.model.account import Holding, Stretch
from rekindle.model.job import Framework, SubHealthStrategy
from rekindle_wire import PROTOCOL, SPOKEN, training_pb2, training_pb2_grpc
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.support.harness import Harness, a_job, a_mindio_job, harness, register
from workers.gateway.job_series import SERIES

METHODS = (
    "Init",
    "Register",
    "SubscribeProcessManageSignal",
    "ReportStopComplete",
    "ReportRecoverStrategy",
    "ReportRecoverStatus",
    "ReportProcessFault",
    "SwitchNicTrack",
    "SubscribeSwitchNicSignal",
    "SubscribeNotifySwitch",
    "ReplySwitchNicResult",
    "HealthCheck",
    "StressTest",
    "SubscribeStressTestResponse",
    "SubscribeNotifyExecStressTest",
    "ReplyStressTestResult",
)


@asynccontextmanager
async def stub_of(world: Harness) -> AsyncIterator[Any]:
    """A client's stub over a connection of its own."""
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        yield RecoverStub(channel)


def client(world: Harness, job_id: str | None = None) -> wire.ClientInfo:
    return wire.ClientInfo(jobId=world.job.id if job_id is None else job_id, role="taskd")


async def _registered(world: Harness, stub: Any) -> None:
    assert (await stub.Init(client(world))).code == 0
    assert (await stub.Register(client(world))).code == 0


async def test_the_paths_are_those_of_the_contract(temporal: WorkflowEnvironment) -> None:
    """All 16 methods answer at /Recover/<Method>, without a package; an unknown one does not."""
    unary = {"Init", "Register", "HealthCheck"} | {name for name in METHODS if name.startswith(("Report", "Reply"))}
    unary |= {"SwitchNicTrack", "StressTest"}
    async with harness(temporal, a_job()) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        for name in METHODS:  # without a job's id, also a stream that is held open for who may have it ends at once
            code = await _code_of_raw_call(channel, f"/Recover/{name}", unary=name in unary)
            assert code is not grpc.StatusCode.UNIMPLEMENTED, name
        assert await _code_of_raw_call(channel, "/Recover/Nothing", unary=True) is grpc.StatusCode.UNIMPLEMENTED
        assert await _code_of_raw_call(channel, "/recover.Recover/Init", unary=True) is grpc.StatusCode.UNIMPLEMENTED


async def _code_of_raw_call(channel: grpc.aio.Channel, path: str, *, unary: bool) -> grpc.StatusCode:
    method: Any = channel.unary_unary(path) if unary else channel.unary_stream(path)
    code: grpc.StatusCode = await method(b"").code()
    return code


async def test_registration_is_idempotent(temporal: WorkflowEnvironment) -> None:
    """Init and Register answer 0 as often as they are asked."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        for _ in range(3):
            await _registered(world, stub)


async def test_an_unknown_job_is_told_so_and_starts_nothing(temporal: WorkflowEnvironment) -> None:
    """Init answers 502, Register 402, a report 400; a subscription is a gRPC error; no workflow exists afterwards."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        nobody = client(world, "nobody")
        assert (await stub.Init(nobody)).code == 502
        assert (await stub.Register(nobody)).code == 402
        assert (await stub.ReportStopComplete(wire.StopCompleteRequest(jobId="nobody", status=wire.Status()))).code == 400
        assert (await stub.ReportProcessFault(_fault("nobody"))).code == 400
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.SubscribeProcessManageSignal(nobody).read()
        assert raised.value.code() is grpc.StatusCode.UNKNOWN
        query = f"WorkflowId = '{ids.job_workflow('nobody')}'"
        assert (await world.client.count_workflows(query)).count == 0


def _fault(job_id: str, rank: str = "0", kind: str = "1") -> wire.ProcessFaultRequest:
    return wire.ProcessFaultRequest(jobId=job_id, faultRanks=[wire.FaultRank(rankId=rank, faultType=kind)])


async def test_recovery_that_is_off_is_403(temporal: WorkflowEnvironment) -> None:
    """A MindIO job without process-recover-enable=on, recover-strategy and subHealthyStrategy=hotSwitch may not register."""
    job = a_mindio_job(sub_health=SubHealthStrategy.IGNORE, annotations={})
    async with harness(temporal, job) as world, stub_of(world) as stub:
        answer = await stub.Init(client(world))
        assert answer.code == 403
        assert "process-recover-enable=on" in answer.info


@pytest.mark.parametrize(
    "changes",
    [
        {"sub_health": SubHealthStrategy.HOT_SWITCH},
        {"labels": {"process-recover-enable": "on"}},
        {"annotations": {"recover-strategy": "retry"}},
    ],
    ids=["hotSwitch", "process-recover-enable", "recover-strategy"],
)
async def test_one_setting_turns_recovery_on(temporal: WorkflowEnvironment, changes: dict[str, Any]) -> None:
    """Any of them is enough for MindIO. The Ascend Operator labels the PodGroup where strategies are named."""
    usual = {"sub_health": SubHealthStrategy.IGNORE, "framework": Framework.MINDSPORE, "annotations": {}}
    job = a_mindio_job(**{**usual, **changes})
    async with harness(temporal, job) as world, stub_of(world) as stub:
        await _registered(world, stub)


async def test_register_before_init_is_408(temporal: WorkflowEnvironment) -> None:
    """The order of the two is part of the contract."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        answer = await stub.Register(client(world))
        assert (answer.code, answer.info) == (408, "Init comes before Register")


async def test_recovery_that_is_turned_on_counts_at_the_next_init(temporal: WorkflowEnvironment) -> None:
    """Some clients ask every second until their owner has changed the label: no 403 is remembered."""
    job = a_mindio_job(sub_health=SubHealthStrategy.IGNORE, annotations={})
    async with harness(temporal, job) as world, stub_of(world) as stub:
        assert (await stub.Init(client(world))).code == 403
        await register(world.client, job.model_copy(update={"labels": {"process-recover-enable": "on"}}))
        await _registered(world, stub)


async def test_a_stream_of_a_job_whose_recovery_is_off_is_refused(temporal: WorkflowEnvironment) -> None:
    """The stream is refused also if recovery was on when the client registered: the job's workflow decides."""
    job = a_mindio_job(labels={"process-recover-enable": "on"}, sub_health=SubHealthStrategy.IGNORE, annotations={})
    async with harness(temporal, job) as world, stub_of(world) as stub:
        await _registered(world, stub)
        await register(world.client, job.model_copy(update={"labels": {}}))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.SubscribeProcessManageSignal(client(world)).read()
        assert raised.value.code() is grpc.StatusCode.UNKNOWN
        assert "process-recover-enable=on" in (raised.value.details() or "")
        assert (await stub.Init(client(world))).code == 403


async def test_a_job_that_was_introduced_once_may_register_at_another_gateway(temporal: WorkflowEnvironment) -> None:
    """Register is accepted at a gateway without an Init there: the job's workflow knows that the job was attached."""
    async with (
        harness(temporal, a_job(), gateways=2) as world,
        world.peer(),
        grpc.aio.insecure_channel(world.gateways[1].address) as channel,
    ):
        stub: Any = RecoverStub(channel)
        assert (await stub.Register(client(world))).code == 0


async def test_reports_of_an_unregistered_client_are_400(temporal: WorkflowEnvironment) -> None:
    """Init alone is not enough for a report, nor for a stream."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        await stub.Init(client(world))
        answer = await stub.ReportRecoverStrategy(wire.RecoverStrategyRequest(jobId=world.job.id, strategies=["exit"]))
        assert (answer.code, answer.info) == (400, f"jobId={world.job.id} not registed")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.SubscribeProcessManageSignal(client(world)).read()
        assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNKNOWN, f"jobId={world.job.id} not registed")


async def test_a_report_that_nobody_waits_for_is_401(temporal: WorkflowEnvironment) -> None:
    """Each report without a recovery is answered at once with 401, and the answer says that nothing waits."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        await _registered(world, stub)
        await stub.SubscribeProcessManageSignal(client(world)).initial_metadata()
        for answer in (
            await stub.ReportStopComplete(wire.StopCompleteRequest(jobId=world.job.id, status=wire.Status())),
            await stub.ReportRecoverStrategy(wire.RecoverStrategyRequest(jobId=world.job.id, strategies=["exit"])),
            await stub.ReportRecoverStatus(wire.RecoverStatusRequest(jobId=world.job.id, status=wire.Status())),
        ):
            assert answer.code == 401
            assert "nothing waits for a report" in answer.info


def _status(job_id: str, **fields: Any) -> wire.RecoverStatusRequest:
    return wire.RecoverStatusRequest(**{"jobId": job_id, "status": wire.Status(), **fields})


def _offers(job_id: str, *strategies: str) -> wire.RecoverStrategyRequest:
    return wire.RecoverStrategyRequest(jobId=job_id, strategies=strategies)


BAD: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "stop complete without status": (lambda s, j: s.ReportStopComplete(wire.StopCompleteRequest(jobId=j)), "status: missing"),
    "status without status": (lambda s, j: s.ReportRecoverStatus(wire.RecoverStatusRequest(jobId=j)), "status: missing"),
    "rank is no number": (lambda s, j: s.ReportProcessFault(_fault(j, "one")), "faultRanks[0].rankId: 'one'"),
    "negative rank": (lambda s, j: s.ReportProcessFault(_fault(j, "-1")), "faultRanks[0].rankId: '-1'"),
    "endless rank": (lambda s, j: s.ReportProcessFault(_fault(j, "9" * 40)), "faultRanks[0].rankId: '999"),
    "foreign digits": (lambda s, j: s.ReportProcessFault(_fault(j, "\u0663")), "faultRanks[0].rankId: "),
    "rank beyond the job": (lambda s, j: s.ReportProcessFault(_fault(j, "4")), "ranks: 4 is not a rank of job"),
    "fault type": (lambda s, j: s.ReportProcessFault(_fault(j, "0", "7")), "faultRanks[0].faultType: '7'"),
    "no fault ranks": (lambda s, j: s.ReportProcessFault(wire.ProcessFaultRequest(jobId=j)), "faultRanks: empty"),
    "isolated ranks": (lambda s, j: s.ReportRecoverStatus(_status(j, isolateRankIds=["x"])), "isolateRankIds[0]: 'x'"),
    "too many strategies": (lambda s, j: s.ReportRecoverStrategy(_offers(j, *["exit"] * 33)), "strategies: 33 entries"),
    "overlong strategy": (lambda s, j: s.ReportRecoverStrategy(_offers(j, "x" * 65)), "strategies[0]: 'xxx"),
    "no job id": (lambda s, _: s.Init(wire.ClientInfo()), "jobId: missing"),
    "job id with a slash": (lambda s, _: s.Init(wire.ClientInfo(jobId="a/b")), "jobId: 'a/b' is not accepted"),
    "overlong job id": (lambda s, _: s.Register(wire.ClientInfo(jobId="j" * 129)), "jobId: 'jjj"),
    "job id in a report": (lambda s, _: s.ReportRecoverStatus(_status("a b")), "jobId: 'a b' is not accepted"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_message_is_409_and_names_its_field(temporal: WorkflowEnvironment, case: str) -> None:
    """The answer says which field, what it was and what is accepted; the gateway goes on."""
    send, words = BAD[case]
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        await _registered(world, stub)
        answer = await send(stub, world.job.id)
        assert answer.code == 409
        assert words in answer.info
        assert (await stub.HealthCheck(client(world))).code == 0


async def test_a_message_over_four_mebibytes_is_refused(temporal: WorkflowEnvironment) -> None:
    """A message that is too large is a gRPC error of that call only. The free text of a smaller one is cut; a message that
    Temporal could not store is 409."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        await _registered(world, stub)
        await stub.SubscribeProcessManageSignal(client(world)).initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ReportRecoverStatus(_status(world.job.id, status=wire.Status(info="x" * (4 * 1024 * 1024))))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await stub.ReportRecoverStatus(_status(world.job.id, status=wire.Status(info="x" * (3 * 1024 * 1024))))
        assert answer.code == 401
        many = ["1"] * 50_001
        assert (await stub.ReportRecoverStatus(_status(world.job.id, isolateRankIds=many))).code == 409
        assert (await stub.HealthCheck(client(world))).code == 0


async def test_who_asks_for_nothing_on_the_wire_is_told_what_is_missing(temporal: WorkflowEnvironment) -> None:
    """Operations without content answer 413, and a result that was not asked for 400. Streams without a registration end with a
    gRPC error."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        assert (await stub.SwitchNicTrack(wire.SwitchNics(jobID=world.job.id))).code == 413
        assert (await stub.StressTest(wire.StressTestParam(jobID=world.job.id))).code == 413
        assert (await stub.ReplySwitchNicResult(wire.SwitchResult(jobId=world.job.id))).code == 400
        assert (await stub.ReplyStressTestResult(wire.StressTestResult(jobId=world.job.id))).code == 400
        for stream in (
            stub.SubscribeSwitchNicSignal(wire.SwitchNicRequest(jobID=world.job.id)),
            stub.SubscribeStressTestResponse(wire.StressTestRequest(jobID=world.job.id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert raised.value.code() is grpc.StatusCode.UNKNOWN
            assert world.job.id in (raised.value.details() or "")


async def test_a_manager_of_another_release_is_refused_when_it_connects(temporal: WorkflowEnvironment) -> None:
    """The answer has both protocols, both releases, and what to install. Managers of others tell no protocol."""
    async with harness(temporal, a_job()) as world, stub_of(world) as stub:
        refused = await stub.Init(client(world), metadata=((SPOKEN, f"{PROTOCOL + 1} 0.9.0"),))
        assert refused.code == 409
        assert f"protocol: {PROTOCOL + 1} is not spoken here, accepted is {PROTOCOL}: install one release" in refused.info
        assert refused.info.endswith(f"(the training side is of release 0.9.0, the gateway of {__version__})")
        assert (await stub.Init(client(world), metadata=((SPOKEN, "garbage"),))).code == 409
        assert (await stub.Init(client(world), metadata=((SPOKEN, f"{PROTOCOL} 0.9.0"),))).code == 0
        await _registered(world, stub)


GOOD: dict[str, Any] = {"incarnation": "life-1", "step": 1, "protocol": PROTOCOL}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step": 0}, "step: accepted"),
        ({"step": -1}, "step: accepted"),
        ({"steps_lost": -1}, "steps_lost and world_size: from 0"),
        ({"world_size": -1}, "steps_lost and world_size: from 0"),
        ({"protocol": 0}, f"protocol: 0 is not spoken here, accepted is {PROTOCOL}"),
        ({"protocol": PROTOCOL + 1}, f"protocol: {PROTOCOL + 1} is not spoken here, accepted is {PROTOCOL}"),
    ],
    ids=str,
)
async def test_progress_is_checked_too(temporal: WorkflowEnvironment, wrong: dict[str, int], words: str) -> None:
    """Our own service refuses steps that cannot be and a protocol that it does not speak, and takes the first step."""
    async with harness(temporal, a_job()) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub: Any = training_pb2_grpc.ProgressStub(channel)
        bad = await stub.ReportProgress(training_pb2.ProgressReport(**{**GOOD, "job_id": world.job.id, **wrong}))
        assert bad.code == 409
        assert words in bad.info
        assert (await stub.ReportProgress(training_pb2.ProgressReport(**{**GOOD, "job_id": world.job.id}))).code == 0
        progress = (await world.status()).state.progress
        assert progress
        assert progress.step == 1


TIME: dict[str, Any] = {"step": 9, "world_size": 4, "protocol": PROTOCOL, "now": {"began": 20, "ended": 30, "steps": 9}}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"world_size": 0}, "ranks: input should be greater than or equal to 1"),
        ({"step": -1}, "step: input should be greater than or equal to 0"),
        ({"now": {"began": 30, "ended": 20}}, "ended: before began"),
        ({"now": {"began": "NaN", "ended": 20}}, "began: input should be a finite number"),
        ({"now": {"began": 10, "ended": 20, "again_seconds": -1}}, "again: input should be greater than or equal to 0"),
        ({"now": {"began": 10, "ended": 9e9}}, "now.ended: 9000000000.0 is not accepted: more than 60 s ahead"),
        ({"before": {"began": -1, "ended": 20}}, "began: input should be greater than or equal to 0"),
        ({"holding": {"state_bytes": -1}}, "state_bytes: input should be greater than or equal to 0"),
        ({"protocol": PROTOCOL + 1}, f"protocol: {PROTOCOL + 1} is not spoken here, accepted is {PROTOCOL}"),
    ],
    ids=str,
)
async def test_times_are_checked_too(temporal: WorkflowEnvironment, wrong: dict[str, Any], words: str) -> None:
    """A report with an impossible time is refused with the name of the field, and the account of the job takes the next one."""
    async with harness(temporal, a_job()) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub: Any = training_pb2_grpc.ProgressStub(channel)
        bad = await stub.ReportTime(ParseDict({**TIME, "job_id": world.job.id, **wrong}, training_pb2.TimeReport()))
        assert bad.code == 409
        assert words in bad.info
        good = ParseDict({**TIME, "job_id": world.job.id}, training_pb2.TimeReport())
        assert (await stub.ReportTime(good)).code == 0
        account = (await world.status()).state.account
        assert account.current == Stretch(began=20, ended=30, steps=9)
        assert (account.step, account.ranks, account.holding) == (9, 4, None)
        holding = {"state_bytes": 2**40, "checkpoint_every": 100}
        later = {"now": {**TIME["now"], "ended": 31}, "job_id": world.job.id}
        for more in ({"holding": holding}, {}):  # a report without it takes nothing back
            assert (await stub.ReportTime(ParseDict({**TIME, **later, **more}, training_pb2.TimeReport()))).code == 0
            assert (await world.status()).state.account.holding == Holding(**holding)


async def test_a_manager_fills_no_history_with_times(temporal: WorkflowEnvironment) -> None:
    """A workflow takes a bounded number of updates, which its incidents need. The rest of a flood is to be sent later."""
    async with harness(temporal, a_job()) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub: Any = training_pb2_grpc.ProgressStub(channel)
        codes = []
        for number in range(30):
            now = {"began": 20, "ended": 30 + number, "steps": 9}
            told = ParseDict({**TIME, "job_id": world.job.id, "now": now}, training_pb2.TimeReport())
            codes.append((await stub.ReportTime(told)).code)
        assert codes[:20] == [0] * 20
        assert codes[-1] == 401
        current = (await world.status()).state.account.current
        assert current
        assert current.ended < 59


async def test_series_of_a_job_live_with_it(temporal: WorkflowEnvironment) -> None:
    """Prometheus gets the numbers of the report, until training ends. A report again changes nothing."""
    job = a_job()

    def series() -> dict[str, float]:
        samples = (sample for metric in text_string_to_metric_families(SERIES.text().decode()) for sample in metric.samples)
        return {
            sample.labels.get("bucket", sample.name): sample.value
            for sample in samples
            if (sample.labels["namespace"], sample.labels["job"]) == (job.namespace, job.name)
        }

    async with harness(temporal, job) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        stub: Any = training_pb2_grpc.ProgressStub(channel)
        since = (await world.status()).state.account.since
        now = {"began": since + 10, "ended": since + 40, "steps": 15, "checkpoint_seconds": 6}
        for _ in range(2):
            told = ParseDict({**TIME, "job_id": world.job.id, "now": now}, training_pb2.TimeReport())
            assert (await stub.ReportTime(told)).code == 0
            found = series()
            assert found.pop("rekindle_job_goodput_ratio") == pytest.approx(0.6)
            assert found.pop("rekindle_job_step_seconds") == pytest.approx(1.6)
            assert found.pop("rekindle_job_step") == 9
            assert found == pytest.approx({"start-up": 10, "training": 24, "checkpoint": 6})
        assert (
            await stub.ReportTime(
                ParseDict({**TIME, "job_id": world.job.id, "now": now, "final": True}, training_pb2.TimeReport())
            )
        ).code == 0
        assert series() == {}
