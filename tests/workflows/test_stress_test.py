"""A stress test: training pauses, ranks run their checks, faulty nodes are isolated, and training goes on without them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import ISOLATED, NODE_HEALTHY, RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import StressRequest
from rekindle.model.verdict import Verdict
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import Harness, a_job, a_mindio_job, harness, training

NODE_1 = StressRequest(nodes={"node-1": (0, 1)})
"""Ranks 2 and 3."""

BAD = {(3, 0): "2"}
"""Rank 3 computes wrongly."""


@asynccontextmanager
async def listening(
    env: WorkflowEnvironment, job: Job, script: Script | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    async with training(env, job, script) as (world, peer):
        await peer.with_tests()
        yield world, peer


async def found(world: Harness, stress: StressRequest = NODE_1) -> Verdict:
    """Asks for the test and returns its verdict."""
    request = ModeRequest(mode=Mode.STRESS_TEST, stress=stress)
    verdict: Verdict = await world.entity.execute_update(ids.Updates.RECOVER, request, result_type=Verdict)
    return verdict


async def begun(world: Harness) -> None:
    request = ModeRequest(mode=Mode.STRESS_TEST, stress=NODE_1)
    await world.entity.start_update(ids.Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)


async def test_sound_devices_are_tested_while_training_pauses(temporal: WorkflowEnvironment) -> None:
    """The orders are those of the contract, under one uuid; the verdict has the table, and the history a line."""
    async with listening(temporal, a_job()) as (world, peer):
        verdict = await found(world)
        assert (verdict.mode, verdict.outcome, verdict.steps_lost) == (Mode.STRESS_TEST, Outcome.RECOVERED, 0), verdict.reason
        assert peer.carried_out == ["pause_train", "continue"]
        assert (peer.received[0].timeout, len({order.uuid for order in peer.received})) == (900, 1)
        (asked,) = peer.tests
        assert {rank: tuple(of.ops) for rank, of in asked.stressParam.items()} == {"2": (0, 1), "3": (0, 1)}
        assert verdict.tested
        rows = [(row.node, row.device, row.rank, row.check, row.code) for row in verdict.tested.rows]
        assert rows == [
            ("node-1", device, rank, check, "0") for device, rank in (("0", 2), ("1", 3)) for check in ("aic", "hccs")
        ]
        (kept,) = (await world.incident()).ladder
        assert (kept.tested, "no fault found" in kept.reason) == (None, True)
        assert [phase.name for phase in kept.phases] == [
            "ranks are found",
            "training pauses",
            "devices are tested",
            "what was found is judged",
            "training goes on",
        ]
        assert world.cluster.node_annotations == {}


async def test_all_nodes_are_tested_where_all_are_meant(temporal: WorkflowEnvironment) -> None:
    """The test includes the memory, which our training side can check."""
    async with listening(temporal, a_job()) as (world, peer):
        verdict = await found(world, StressRequest(all_nodes=(2,)))
        assert verdict.outcome is Outcome.RECOVERED
        assert sorted(peer.tests[0].stressParam) == ["0", "1", "2", "3"]


async def test_what_could_not_be_tested_is_said_and_is_no_fault(temporal: WorkflowEnvironment) -> None:
    """Training goes on, and no node is isolated."""
    async with listening(temporal, a_job(), Script(stress_codes={(2, 1): "1"})) as (world, peer):
        verdict = await found(world)
        assert (verdict.outcome, peer.carried_out[-1]) == (Outcome.RECOVERED, "continue")
        assert "rank 2 not tested in all" in verdict.reason
        assert world.cluster.node_annotations == {}


async def test_a_node_with_a_fault_is_isolated_and_training_goes_on_without_it(temporal: WorkflowEnvironment) -> None:
    """The training side is not ordered to continue. The pod's ranks move to a spare node that is not isolated, and no fault is
    left."""
    async with listening(temporal, a_job(annotations={}), Script(stress_codes=BAD)) as (world, peer):
        before = world.cluster.holder(2 // 2).metadata.name
        verdict = await found(world)
        assert (verdict.mode, verdict.outcome) == (Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED), verdict.reason
        assert "continue" not in peer.carried_out
        marks = world.cluster.node_annotations["node-1"]
        assert marks[NODE_HEALTHY] == "UnHealthy"
        assert f"stress test of job default/{world.job.name}: (aic of rank 3" in marks[ISOLATED]
        assert world.cluster.holder(1).spec.node_name == "node-2"
        assert before not in world.cluster.pods_by_name
        assert verdict.tested
        assert verdict.tested.findings.isolate == ("node-1",)
        assert (verdict.tested.rows[0].rank, verdict.tested.rows[0].code) == (3, "2")
        first, second = (await world.incident()).ladder
        assert (first.mode, first.outcome, second.steps_lost) == (Mode.STRESS_TEST, Outcome.ESCALATE, 0)
        assert "isolated node-1" in first.reason
        test = ids.recovery_workflow(world.job, 1, Mode.STRESS_TEST)
        assert "| node-1 | 1 | 3 | aic | 2 | aic of 3 |" in await Rekindle(world.client).details(test)
        assert (await world.status()).state.faults == ()


async def test_new_pods_of_whatever_job_keep_away_from_isolated_nodes(temporal: WorkflowEnvironment) -> None:
    """The isolated nodes are avoided also in a recovery that knows nothing of the test."""
    async with listening(temporal, a_job(annotations={})) as (world, _):
        world.cluster.node_annotations["node-2"] = {NODE_HEALTHY: "UnHealthy", ISOLATED: "a test"}
        world.cluster.node_names.append("node-3")
        verdict = await Rekindle(world.client).hot_switch(world.job.id, pod_rank=1, force=True)
        assert verdict.outcome is Outcome.RECOVERED, verdict.reason
        assert world.cluster.holder(1).spec.node_name == "node-3"


async def test_a_rank_that_timed_out_starts_again_and_no_node_is_isolated(temporal: WorkflowEnvironment) -> None:
    """The code is of that rank alone."""
    async with listening(temporal, a_job(annotations={}), Script(stress_codes={(2, 0): "3"})) as (world, peer):
        verdict = await found(world)
        assert (verdict.mode, verdict.outcome) == (Mode.IN_PLACE, Outcome.RECOVERED), verdict.reason
        assert peer.carried_out[-1] == "recover"
        assert world.cluster.node_annotations == {}
        assert (await world.status()).state.faults == ()


async def test_where_no_pod_can_be_replaced_the_job_starts_again_elsewhere(temporal: WorkflowEnvironment) -> None:
    """The owner allows no recovery of processes: all pods stop, and none starts on the isolated node."""
    async with listening(temporal, a_job(), Script(stress_codes=BAD)) as (world, _):
        await begun(world)
        ladder = (await world.restarted()).ladder
        assert [verdict.mode for verdict in ladder] == [Mode.STRESS_TEST, Mode.JOB_RESCHEDULING]
        assert "node-1" not in {pod.spec.node_name for pod in world.cluster.pods_by_name.values()}
        assert (await world.status()).state.faults == ()


@pytest.mark.parametrize(
    ("stress", "words"),
    [
        (None, "stress: missing"),
        (StressRequest(), "stress: missing"),
        (StressRequest(nodes={f"n{i}": (0,) for i in range(300)}), "at most 128 nodes"),
        (StressRequest(all_nodes=tuple(range(50))), "at most 16 operations"),
    ],
)
async def test_a_request_that_means_nothing_is_refused(
    temporal: WorkflowEnvironment, stress: StressRequest | None, words: str
) -> None:
    """The error names the field, and nothing is stored."""
    async with listening(temporal, a_job()) as (world, peer):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await world.entity.execute_update(
                ids.Updates.RECOVER, ModeRequest(mode=Mode.STRESS_TEST, stress=stress), result_type=Verdict
            )
        assert isinstance(refused.value.cause, ApplicationError)
        assert words in refused.value.cause.message
        assert peer.received == []


async def test_another_mode_tests_nothing(temporal: WorkflowEnvironment) -> None:
    """Checks in the request of a restart are a mistake, and nothing is restarted."""
    async with listening(temporal, a_job()) as (world, _):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await world.entity.execute_update(
                ids.Updates.RECOVER, ModeRequest(mode=Mode.JOB_RESCHEDULING, stress=NODE_1), result_type=Verdict
            )
        assert "a job rescheduling tests nothing" in str(refused.value.cause)


@pytest.mark.parametrize(
    ("script", "phase"), [(Script(holds=False), "training pauses"), (Script(continues=False), "training goes on")]
)
async def test_training_that_says_nothing_is_asked(temporal: WorkflowEnvironment, script: Script, phase: str) -> None:
    """Training repeats a step when the limit of 15 minutes is over, and no process is ended."""
    async with listening(temporal, a_job(), script) as (world, peer):
        await begun(world)
        await world.phase(phase)
        await world.skip(timedelta(minutes=15, seconds=1))
        (verdict,) = (await world.incident()).ladder
        assert verdict.outcome is not Outcome.ESCALATE, verdict.reason
        assert peer.carried_out[-1] == "retry"


async def test_a_test_that_nobody_reports_ends_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """Our manager says with its next answer whether it can."""
    async with listening(temporal, a_job(), Script(tests=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        await world.phase("devices are tested")
        await world.skip(timedelta(minutes=15, seconds=1))
        incident = await world.incident()
        assert (incident.verdict, peer.carried_out[-1]) == (Outcome.IGNORED, "continue")
        assert "no report of the test within 900 s" in incident.ladder[0].reason


async def test_training_that_cannot_pause_goes_on(temporal: WorkflowEnvironment) -> None:
    """Training at its last step has no step boundary left at which it could pause."""
    async with listening(temporal, a_job(), Script(pause_code=499)) as (world, peer):
        verdict = await found(world)
        assert (verdict.outcome, peer.carried_out) == (Outcome.IGNORED, ["pause_train"])
        assert verdict.tested
        assert verdict.tested.failed == "om failed, pause train failed"


async def test_a_fault_in_the_pause_comes_first(temporal: WorkflowEnvironment) -> None:
    """The mode that mends the fault runs at once, and the test is over."""
    async with listening(temporal, a_job(annotations={}), Script(tests=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        peer.paused_by = ""
        await peer.report_fault(3)
        incident = await world.incident()
        assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [
            (Mode.STRESS_TEST, Outcome.CANCELLED),
            (Mode.IN_PLACE, Outcome.RECOVERED),
        ]


async def test_where_the_cluster_does_not_answer_it_is_said_all_the_same_what_was_found(temporal: WorkflowEnvironment) -> None:
    """Only where the ranks are is not known: what could not be tested does not pass for sound."""
    async with listening(temporal, a_job(), Script(tests=False, stress_codes={(3, 0): "1"})) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        world.cluster.unreachable = True
        await peer.report_tested({2: (0, 1), 3: (0, 1)})
        await world.phase("what was found is judged")
        await world.skip(timedelta(minutes=2, seconds=1))
        incident = await world.incident(1)
        assert incident.verdict is Outcome.RECOVERED
        assert incident.ladder[0].reason.startswith("4 checks, rank 3 not tested in all"), incident.ladder[0].reason


async def test_a_node_that_cannot_be_isolated_is_left_all_the_same(temporal: WorkflowEnvironment) -> None:
    """The node counts as lost for this incident, and the verdict does not say that it is isolated."""
    async with listening(temporal, a_job(annotations={}), Script(stress_codes=BAD)) as (world, _):
        world.cluster.refuses_annotations = "nodes may not be patched"
        verdict = await found(world)
        assert (verdict.mode, verdict.outcome) == (Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED), verdict.reason
        assert world.cluster.holder(1).spec.node_name == "node-2"
        assert verdict.tested
        assert verdict.tested.findings.isolate == ()
        reason = (await world.incident()).ladder[0].reason
        assert "node-1 could not be isolated: nodes may not be patched" in reason


# ---- MindIO


async def test_agents_of_mindio_start_nothing_while_a_test_runs(temporal: WorkflowEnvironment) -> None:
    """The agents receive the orders of the original."""
    async with listening(temporal, a_mindio_job()) as (world, peer):
        verdict = await found(world)
        assert verdict.outcome is Outcome.RECOVERED, verdict.reason
        assert peer.carried_out == ["pause_train", "pause_start_agent", "continue_start_agent", "continue"]
        assert [order.signalType for order in peer.received[1:3]] == ["pauseStartAgent", "continueStartAgent"]


async def test_mindio_tests_no_memory(temporal: WorkflowEnvironment) -> None:
    """The test is refused, and training is not paused."""
    async with listening(temporal, a_mindio_job()) as (world, peer):
        verdict = await found(world, StressRequest(all_nodes=(2,)))
        assert (verdict.outcome, peer.received) == (Outcome.REFUSED, [])
        assert "2 is no operation here, accepted are 0, 1" in verdict.reason


async def test_pods_of_mindio_leave_a_node_with_a_fault(temporal: WorkflowEnvironment) -> None:
    """The scheduler of MindIO reads the annotation. The ranks of the node are announced as faulty after the pause."""
    job = a_mindio_job(annotations={"recover-strategy": "recover"})
    script = Script(stress_codes=BAD)
    async with training(temporal, job, script, TheirCluster(job)) as (world, peer):
        await peer.with_tests()
        await begun(world)
        await world.settled(lambda status: status.running is Mode.PROCESS_RESCHEDULING)
        await peer.until(lambda: "stop_train" in peer.carried_out)
        assert peer.carried_out[:4] == ["pause_train", "pause_start_agent", "continue_start_agent", "stop_train"]
        assert world.cluster.node_annotations["node-1"][NODE_HEALTHY] == "UnHealthy"


async def test_agents_of_mindio_are_released_for_a_fault_that_comes_first(temporal: WorkflowEnvironment) -> None:
    """Held ranks would not be started, and training would stand until the recovery gives up."""
    job = a_mindio_job(annotations={"recover-strategy": "recover"})
    async with listening(temporal, job, Script(tests=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        await peer.report_fault(3)
        await peer.until(lambda: "stop_train" in peer.carried_out)
        assert peer.carried_out[:4] == ["pause_train", "pause_start_agent", "continue_start_agent", "stop_train"]


# ---- cancelled


@pytest.mark.parametrize("mindio", [False, True], ids=["ours", "MindIO"])
async def test_a_test_that_is_cancelled_lets_training_go_on(mindio: bool, temporal: WorkflowEnvironment) -> None:
    """The ranks are not waited for, and the verdict comes only when training goes on."""
    job = a_mindio_job() if mindio else a_job()
    async with listening(temporal, job, Script(tests=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        running = await world.running()
        await running.cancel()
        incident = await world.incident()
        (verdict,) = incident.ladder
        assert (verdict.outcome, verdict.reason) == (Outcome.CANCELLED, "cancelled by request; training goes on as before")
        held = ["pause_start_agent", "continue_start_agent"] if mindio else []
        assert peer.carried_out == ["pause_train", *held, "continue"]
        assert (verdict.seconds or 0) < 60


# ---- a control plane that dies in the middle


async def test_a_test_goes_on_at_the_gateway_where_the_stream_comes_back(temporal: WorkflowEnvironment) -> None:
    """The list is sent again, and the results of the ranks count once."""
    async with listening(temporal, a_job(), Script(tests=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        peer.script.tests = True
        pause = peer.paused_by
        await peer.restart_manager()
        peer.paused_by = pause
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED, incident.ladder[-1].reason
        assert len(peer.tests) >= 2


async def test_a_control_plane_that_restarts_in_the_middle_goes_on(temporal: WorkflowEnvironment) -> None:
    """Worker and gateway are away while the ranks test; the replaced system forbids that."""
    async with listening(temporal, a_job(annotations={}), Script(tests=False, stress_codes=BAD)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        pause = peer.paused_by
        await world.gateway.stop()
        await world.control.stop()
        await world.gateway.start()
        await world.control.start()
        peer.script.tests, peer.paused_by = True, pause
        incident = await world.incident()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.STRESS_TEST, Mode.PROCESS_RESCHEDULING]
        assert incident.verdict is Outcome.RECOVERED, incident.ladder[-1].reason
        assert world.cluster.writes.count("annotate node-1") == 1


async def test_with_mindio_a_step_is_repeated_behind_a_test_without_results(temporal: WorkflowEnvironment) -> None:
    """No pod starts again for the repeated step. Agents that were held start processes again before it."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "retry"})
    async with listening(temporal, job, Script(tests=False)) as (world, peer):
        pods = set(world.cluster.pods_by_name)
        await begun(world)
        await peer.until(lambda: bool(peer.tests))
        await peer.report_tested({})
        incident = await world.incident()
        assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [
            (Mode.STRESS_TEST, Outcome.ESCALATE),
            (Mode.ONLINE_RETRY, Outcome.RECOVERED),
        ]
        agents = ["pause_train", "pause_start_agent", "continue_start_agent"]
        assert peer.carried_out == [*agents, "stop_train", "on_global_rank", "retry"]
        assert set(world.cluster.pods_by_name) == pods


# ---- the wire


async def asked(world: Harness, nodes: Mapping[str, tuple[int, ...]], every: tuple[int, ...] = (), at: int = 0) -> wire.Status:
    """Asks for a test, as a platform does."""
    message = wire.StressTestParam(jobID=world.job.id, allNodesOps=every)
    for node, ops in nodes.items():
        message.stressParam[node].ops.extend(ops)
    async with grpc.aio.insecure_channel(world.gateways[at].address) as channel:
        status: wire.Status = await RecoverStub(channel).StressTest(message)
    return status


async def told(world: Harness, at: int = 0) -> str:
    """Returns the one message of the platform's stream."""
    async with grpc.aio.insecure_channel(world.gateways[at].address) as channel:
        stream: Any = RecoverStub(channel).SubscribeStressTestResponse(wire.StressTestRequest(jobID=world.job.id))
        (words,) = [message.msg async for message in stream]
        return str(words)


async def test_a_platform_asks_on_the_wire_and_hears_what_was_found(temporal: WorkflowEnvironment) -> None:
    """The answer has the contract's text, with results by node and device. A gateway that knows nothing of the test gives it
    too."""
    async with listening(temporal, a_job()) as (world, _):
        status = await asked(world, {"node-1": (0,)})
        assert (status.code, status.info) == (0, "stress test operation was successfully distributed")
        words, _, listed = (await told(world)).partition(", result:")
        assert words == "stress test finish"
        assert json.loads(listed)["node-1"]["1"] == {"rankResult": {"aic": {"code": "0", "result": "aic of 3"}}}
        await world.gateway.stop()
        await world.gateway.start()
        assert (await told(world)).startswith("stress test finish")


async def test_a_platform_hears_which_node_was_isolated(temporal: WorkflowEnvironment) -> None:
    """The answer names the isolated node."""
    async with listening(temporal, a_job(annotations={}), Script(stress_codes=BAD)) as (world, _):
        assert (await asked(world, {}, (0,))).code == 0
        assert (await told(world)).startswith("stress test find fault, isolate node:map[node-1:{}],result:{")


async def test_a_platform_hears_what_was_found_before_all_is_mended(temporal: WorkflowEnvironment) -> None:
    """The ranks may take long to come back: nothing that it does with the node has to wait for them."""
    async with listening(temporal, a_job(annotations={}), Script(stress_codes=BAD)) as (world, _):
        world.cluster.backup_starts = False
        assert (await asked(world, {}, (0,))).code == 0
        assert (await told(world)).startswith("stress test find fault, isolate node:map[node-1:{}],result:{")
        status = await world.settled(lambda now: now.running is not Mode.STRESS_TEST)
        assert (status.running, status.state.history) == (Mode.PROCESS_RESCHEDULING, ())
        assert (await told(world)).startswith("stress test find fault")


async def test_a_platform_hears_that_training_could_not_pause(temporal: WorkflowEnvironment) -> None:
    """The answer has the contract's text."""
    async with listening(temporal, a_job(), Script(pause_code=499)) as (world, _):
        assert (await asked(world, {"node-1": (0,)})).code == 0
        assert await told(world) == "om failed, pause train failed"


@pytest.mark.parametrize(
    ("nodes", "every", "words"),
    [
        ({}, (), "stressParam: empty"),
        ({"node-9": (0,)}, (), "'node-9' is no node of the job"),
        ({"node-1": ()}, (), "no operations"),
        ({"node-1": (7,)}, (), "7 is no operation here"),
        ({}, (1, 1), "operation 1 is repeated"),
    ],
)
async def test_a_platform_that_asks_for_what_the_job_has_not_gets_413(
    temporal: WorkflowEnvironment, nodes: Mapping[str, tuple[int, ...]], every: tuple[int, ...], words: str
) -> None:
    """The answer names the field, and nothing is touched."""
    async with listening(temporal, a_job()) as (world, peer):
        status = await asked(world, nodes, every)
        assert (status.code, peer.received) == (413, [])
        assert words in status.info


async def test_a_platform_that_asks_while_the_job_is_busy_gets_411(temporal: WorkflowEnvironment) -> None:
    """The first test goes on, and its result is the answer, also where the refused request is listed by then."""
    async with listening(temporal, a_job(), Script(tests=False)) as (world, peer):
        assert (await asked(world, {"node-1": (0,)})).code == 0
        await peer.until(lambda: bool(peer.tests))
        assert (await asked(world, {"node-1": (0,)})).code == 411
        await peer.report_tested({2: (0,), 3: (0,)})
        fronts = f"WorkflowId STARTS_WITH '{ids.request_workflow(world.job.id, '')}' AND ExecutionStatus != 'Running'"
        async with asyncio.timeout(60):
            while len([run async for run in world.client.list_workflows(fronts)]) < 2:
                await asyncio.sleep(0.03)
        assert (await told(world)).startswith("stress test finish")


async def test_a_platform_that_asked_for_no_test_hears_of_none(temporal: WorkflowEnvironment) -> None:
    """The answer is a gRPC error, as in the contract."""
    async with listening(temporal, a_job()) as (world, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await told(world)
        assert "is not stress testing" in str(refused.value.details())


async def test_a_platform_hears_of_the_last_test_at_whatever_gateway_it_asks(temporal: WorkflowEnvironment) -> None:
    """One that was asked for at this gateway before has found nothing."""
    async with harness(temporal, a_job(annotations={}), gateways=2) as world, world.peer() as peer:
        await world.first_step()
        await peer.with_tests()
        for gateway, words in ((0, "stress test finish"), (1, "stress test find fault, isolate node:map[node-1:{}]")):
            peer.script.stress_codes = BAD if gateway else {}
            assert (await asked(world, {"node-1": (0,)}, at=gateway)).code == 0
            assert (await told(world, gateway)).startswith(words)
        assert (await told(world)).startswith("stress test find fault")
