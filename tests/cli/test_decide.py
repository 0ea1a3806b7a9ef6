"""Commands with which people decide: approve, deny, abort and retry, typed beside a real control plane."""

from temporalio.testing import WorkflowEnvironment

from rekindle.model.approval import Unanswered
from rekindle.model.job import Job
from rekindle.model.keys import GIVEN_UP
from rekindle.model.mode import Mode, Outcome
from tests.cli.test_recover import ended, typed
from tests.support.harness import Harness, a_job, node_fault, pod_fault, training


def asking() -> Job:
    """Returns a job whose owner wants to be asked before a restart."""
    return a_job(approvals={Mode.JOB_RESCHEDULING: Unanswered.DENY})


async def _fails(world: Harness) -> None:
    """Lets a pod of the job fail, until a person is asked."""
    pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
    await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
    await world.settled(lambda status: status.state.question is not None)


async def test_a_denied_job_is_given_up_where_everybody_sees_it(temporal: WorkflowEnvironment) -> None:
    """The question, the reason and the commands are on the job's page, and the reason is on the job's object until it trains."""
    async with training(temporal, asking()) as (world, _peer):
        name = world.job.name
        await _fails(world)
        shown = (await ended(await typed(world, "show", name)))[1]
        assert f"{name} ({world.job.id}): waits for approval" in shown
        assert f"rekindle approve {name}" in shown
        code, words = await ended(await typed(world, "deny", name, "--reason", "it ends soon"))
        assert (code, words.splitlines()[0]) == (0, "the job rescheduling is denied")
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        shown = (await ended(await typed(world, "show", name)))[1]
        assert f"{name} ({world.job.id}): given up" in shown
        assert f"`rekindle retry {name}` begins again" in shown
        await world.noted(GIVEN_UP, "denied by")
        code, words = await ended(await typed(world, "retry", name))
        assert code == 0, words
        await world.settled(lambda status: status.state.question is not None)
        assert (await ended(await typed(world, "approve", name, "--mode", "job-rescheduling")))[0] == 0
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED
        await world.noted(GIVEN_UP, "")


async def test_an_aborted_recovery_names_who_aborted_it(temporal: WorkflowEnvironment) -> None:
    """No mode follows, and the same command is refused when no recovery runs any more."""
    async with training(temporal, asking()) as (world, _peer):
        await _fails(world)
        code, words = await ended(await typed(world, "abort", world.job.name, "--reason", "planned"))
        assert code == 0, words
        incident = await world.incident()
        assert incident.ladder[-1].reason.startswith("aborted by ")
        assert incident.ladder[-1].reason.endswith(": planned")
        code, words = await ended(await typed(world, "abort", world.job.name))
        assert (code, f"no recovery of job {world.job.name} is running" in words) == (4, True)


async def test_a_recovery_begins_at_the_mode_that_a_person_names(temporal: WorkflowEnvironment) -> None:
    """Cheaper modes are not tried: the state is saved, and the job is restarted."""
    approvals = {Mode.PROCESS_RESCHEDULING: Unanswered.DENY}
    async with training(temporal, a_job(annotations={}, approvals=approvals)) as (world, _peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        await world.settled(lambda status: status.state.question is not None)
        await ended(await typed(world, "abort", world.job.name))
        await world.incident()
        code, words = await ended(await typed(world, "recover", world.job.name, "--from", "dying-gasp", "--dry-run"))
        assert (code, "would be accepted: dying gasp" in words) == (0, True), words
        command = await typed(world, "recover", world.job.name, "--from", "dying-gasp")
        incident = await world.restarted(2)
        assert [verdict.mode for verdict in incident.ladder] == [Mode.DYING_GASP, Mode.JOB_RESCHEDULING]
        await ended(command)


async def test_one_mode_or_the_first_of_several_is_named(temporal: WorkflowEnvironment) -> None:
    """Contradicting options, `--from` and `--mode`, are refused together."""
    async with training(temporal, a_job()) as (world, _peer):
        arguments = ("recover", world.job.name, "--from", "dying-gasp", "--mode", "dying-gasp")
        code, words = await ended(await typed(world, *arguments))
        assert (code, "--mode, --from: use one of them" in words) == (2, True)
