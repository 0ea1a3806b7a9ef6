"""Platform mode: a platform names the strategy, confirms the faults and prepares the rank table, all by annotations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from activities.pod_recreation import MakingAnew
from rekindle.errors import BadInput
from rekindle.ids import Updates
from rekindle.model.approval import Abort
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job, Trait
from rekindle.model.keys import PLATFORM_CONFIRM, PLATFORM_RESULT, PLATFORM_STRATEGY, RANK_TABLE_READY, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import platform_answers
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import TheirCluster
from tests.fakes.scripted_contract import ScriptedContract
from tests.support.harness import RESUMES, Harness, a_mindio_job, training
from tests.workflows.support.openings import SHORT, fields
from workflows import platform

RETRY, IN_PLACE, ELSEWHERE = Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING
SAVE, RESTART = Mode.DYING_GASP, Mode.JOB_RESCHEDULING
RECOVERED, ESCALATE = Outcome.RECOVERED, Outcome.ESCALATE
ALL = "retry,recover-in-place,recover,dump"


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recovery delete pods at once, since no scheduler deletes them here."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)


def decided_by_a_platform(allows: str = ALL) -> Job:
    """Returns a MindIO job of three pods with two ranks each, about which a platform decides."""
    annotations = {RECOVER_STRATEGY: allows, PLATFORM_STRATEGY: ""}
    traits = (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS, Trait.CONTRACT_WORDS)
    at_once = {"settle": timedelta(0), "release": timedelta(0), "report_lost": SHORT}
    platform = dict.fromkeys(("platform_strategy", "platform_result", "rank_table"), SHORT)
    return a_mindio_job(pods=3, traits=traits, annotations=annotations, limits=Limits(**at_once, **platform))


@asynccontextmanager
async def their_job(
    env: WorkflowEnvironment, job: Job, said: dict[str, str], script: Script | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer, ScriptedContract]]:
    """Args:
    said: annotations by the platform.
    """
    cluster = TheirCluster(job, nodes=job.pods + 3)
    contract = cluster.contract = ScriptedContract()
    contract.annotations.update(said)
    async with training(env, job, script, cluster) as (world, peer):
        await world.look()
        yield world, peer, contract


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def restarted(world: Harness, peer: ScriptedPeer) -> Incident:
    await world.phase(RESUMES)
    await peer.cut()
    await peer.attach()
    await world.phase(RESUMES)
    await world.skip(timedelta(seconds=6))
    return await world.incident()


def answers(**said: str) -> dict[str, str]:
    return {PLATFORM_STRATEGY: "recover", PLATFORM_RESULT: "", RANK_TABLE_READY: "true", **said}


async def test_the_platform_chooses_the_strategy(temporal: WorkflowEnvironment) -> None:
    """The step could be repeated, and the platform wants processes to recover. The verdict says who decided."""
    async with their_job(temporal, decided_by_a_platform(), answers()) as (world, peer, contract):
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, RECOVERED)]
        assert incident.ladder[0].reason.endswith("; the platform decided: recover")
        assert contract.annotations[PLATFORM_CONFIRM] == "3:0"


async def test_faults_that_the_platform_knows_are_announced_too(temporal: WorkflowEnvironment) -> None:
    """Confirmation is answered with a rank of another pod. Ranks that the job does not have are ignored."""
    said = answers(**{PLATFORM_RESULT: "5:1, 900:1"})
    async with their_job(temporal, decided_by_a_platform("recover"), said) as (world, peer, contract):
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        announced = next(order for order in peer.received if "on_global_rank" in order.actions)
        assert fields(announced)[2] == ["2:1", "3:1", "4:1", "5:1"]
        assert contract.annotations[PLATFORM_CONFIRM] == "3:1"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "the platform named no strategy within 0.3 s (ProcessRecoverStrategy): decided without it"),
        ({PLATFORM_STRATEGY: "restart"}, "the platform's strategy 'restart' is not accepted, use retry, recover, dump, exit"),
    ],
    ids=["silent", "unknown"],
)
async def test_a_platform_without_an_answer_costs_its_limit_and_no_more(
    temporal: WorkflowEnvironment, said: dict[str, str], words: str
) -> None:
    """The job's own strategies hold then, and the platform is not asked again in that incident."""
    async with their_job(temporal, decided_by_a_platform(), said) as (world, peer, contract):
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(RETRY, RECOVERED)]
        assert words in incident.ladder[0].reason
        assert PLATFORM_CONFIRM not in contract.annotations


@pytest.mark.parametrize(
    "said",
    [answers(), answers(**{PLATFORM_CONFIRM: "0:1"}), answers(**{PLATFORM_RESULT: "five"})],
    ids=["no result", "not cleared", "malformed"],
)
async def test_a_confirmation_without_a_result_is_not_waited_for_longer(
    temporal: WorkflowEnvironment, said: dict[str, str]
) -> None:
    """The faults that we know are announced: the platform is silent, has not cleared its last one, or writes nonsense."""
    if not said[PLATFORM_RESULT]:
        said = {key: value for key, value in said.items() if key != PLATFORM_RESULT}
    async with their_job(temporal, decided_by_a_platform("recover"), said) as (world, peer, _):
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        announced = next(order for order in peer.received if "on_global_rank" in order.actions)
        assert fields(announced)[2] == ["2:1", "3:1"]


@pytest.mark.parametrize(
    ("ready", "words"),
    [("", "has not said `true` within 0.3 s"), ("failed", "says 'failed'")],
    ids=["silent", "refused"],
)
async def test_a_rank_table_that_is_not_ready_leads_to_the_next_mode(
    temporal: WorkflowEnvironment, ready: str, words: str
) -> None:
    """Training stands, saves its state, and the job is restarted."""
    said = answers(**{RANK_TABLE_READY: ready})
    async with their_job(temporal, decided_by_a_platform("recover,dump"), said) as (world, peer, _):
        await peer.report_fault(3)
        incident = await restarted(world, peer)
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (SAVE, ESCALATE), (RESTART, RECOVERED)]
        assert words in incident.ladder[0].reason
        assert "recover" not in peer.carried_out


async def test_the_platform_may_change_its_mind_between_two_modes(temporal: WorkflowEnvironment) -> None:
    """Strategy is a recovery at first, and `exit` when that has failed, so that nothing is saved."""
    job, script = decided_by_a_platform("recover,dump"), Script(statuses=[406])
    async with their_job(temporal, job, answers(), script) as (world, peer, contract):

        async def changes(strategy: str) -> None:
            contract.annotations[PLATFORM_STRATEGY] = "exit"

        peer.script.before_status = changes
        await peer.report_fault(3)
        incident = await restarted(world, peer)
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]


@pytest.mark.parametrize("is_away", [True, False], ids=["cluster is away", "cleared"])
async def test_a_choice_holds_until_the_platform_names_another(temporal: WorkflowEnvironment, is_away: bool) -> None:
    """Strategy was a retry alone. When that failed and none can be read, no unwanted recovery begins."""
    job, script = decided_by_a_platform(), Script(statuses=[405])
    async with their_job(temporal, job, answers(**{PLATFORM_STRATEGY: "retry"}), script) as (world, peer, contract):

        async def changes(strategy: str) -> None:
            contract.is_away = is_away
            contract.annotations.pop(PLATFORM_STRATEGY, None)

        peer.script.before_status = changes
        await peer.report_fault(3, kind="0")
        incident = await restarted(world, peer)
        assert ladder(incident) == [(RETRY, ESCALATE), (SAVE, ESCALATE), (RESTART, RECOVERED)]


async def test_an_abort_does_not_wait_for_the_platform(temporal: WorkflowEnvironment) -> None:
    """The incident ends while the platform is asked, and no mode has begun."""
    job = decided_by_a_platform()
    job = job.model_copy(update={"limits": job.limits.model_copy(update={"platform_strategy": timedelta(minutes=15)})})
    async with their_job(temporal, job, {}) as (world, peer, _):
        await peer.report_fault(3)
        await world.settled(lambda status: status.state.incidents == 1)
        await world.tell(Updates.ABORT, Abort(by="an operator"))
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, Outcome.CANCELLED)]
        assert peer.carried_out == []


@pytest.mark.usefixtures("unsandboxed")
async def test_a_cluster_that_is_away_does_not_delay_the_recovery(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform cannot be asked. The recovery begins with the job's own strategies when the limit has passed."""
    monkeypatch.setattr(platform, "LATE", timedelta(0))
    async with their_job(temporal, decided_by_a_platform(), answers()) as (world, peer, contract):
        contract.is_away = True
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(RETRY, RECOVERED)]
        assert "the platform was not asked: the cluster does not answer in time" in incident.ladder[0].reason


async def test_a_person_who_asks_for_a_mode_is_not_overruled(temporal: WorkflowEnvironment) -> None:
    """A platform decides about faults. A requested restart, before which training saves its state,
    begins without a word of it."""
    async with their_job(temporal, decided_by_a_platform(), {}) as (world, peer, _):
        request = ModeRequest(mode=RESTART, requested_by="an operator")
        asked = await world.entity.start_update(
            Updates.RECOVER, request, result_type=Verdict, wait_for_stage=WorkflowUpdateStage.ACCEPTED
        )
        incident = await restarted(world, peer)
        assert ladder(incident) == [(SAVE, ESCALATE), (RESTART, RECOVERED)]
        assert not any("platform" in verdict.reason for verdict in incident.ladder)
        assert (await asked.result()).outcome is RECOVERED


@pytest.mark.parametrize("text", ["a:1", "1", "1:9", "-1:1", "1:1:1", "99999999:1"])
def test_a_malformed_fault_is_named(text: str) -> None:
    """The error says what is accepted."""
    with pytest.raises(BadInput, match=r"is not accepted: the (rank|type of a fault) is"):
        platform_answers.read(f"0:1,{text}")


def test_faults_are_written_and_read_alike() -> None:
    """The type of a fault that needs another process wins over one that may be retried."""
    faults = platform_answers.read("3:0, 1:1,3:1,")
    assert platform_answers.written(faults) == "1:1,3:1"
