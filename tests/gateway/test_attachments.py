"""The job's workflow learns of its streams, and few of these updates are stored."""

import asyncio
from collections import Counter

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.ids import ErrorTypes, Updates
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.dialogue import Receipt
from rekindle.model.mode import Outcome
from rekindle.model.state import Contact, JobStatus
from tests.fakes.peer import Script
from tests.support.harness import NOW, Harness, a_job, harness, register, sub_health, training
from workers.gateway.attachments import Attachments
from workers.gateway.job_workflows import Jobs
from workers.gateway.registration_cache import Introductions
from workers.gateway.streams import Streams

A = Attachment(queue="gateway/a", session="session-a", since=NOW)
B = Attachment(queue="gateway/b", session="session-b", since=NOW)


async def stored(world: Harness) -> Counter[str]:
    """Updates in the history of the job's workflow, by name."""
    history = await world.entity.fetch_history()
    requests = [event.workflow_execution_update_accepted_event_attributes.accepted_request for event in history.events]
    return Counter(request.input.name for request in requests if request.input.name and request.input.name != Updates.REGISTER)


async def refusal(world: Harness, update: str, argument: object) -> str | None:
    """The type of the error with which the job's workflow refuses an update."""
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await world.tell(update, argument)
    assert isinstance(raised.value.cause, ApplicationError)
    return raised.value.cause.type


async def test_a_job_that_does_not_answer_delays_no_offer_of_others(temporal: WorkflowEnvironment) -> None:
    """A job whose workflow was lost misses its stream. It is restarted if the stream does not come for 15 s."""
    answers, offered = asyncio.Event(), Counter[str]()

    class Slow(Jobs):
        async def ask(self, job_id: str, update: str, argument: object = None) -> Receipt:
            offered[job_id] += 1
            if job_id == "stuck" and offered[job_id] > 1:
                await answers.wait()
            return Receipt()

    streams, jobs = Streams(limit=10), Slow(temporal.client)
    attachments = Attachments(jobs, streams, Introductions(jobs, 10, ()), "gateway/a", every=0.01)
    async with attachments.stream("stuck", "a"), attachments.stream("other", "b"):
        offers = asyncio.create_task(attachments.keep_told())
        try:
            async with asyncio.timeout(10):
                while offered["stuck"] < 2 or offered["other"] < 5:
                    await asyncio.sleep(0.01)
            assert offered["stuck"] == 2
        finally:
            answers.set()
            offers.cancel()
            await asyncio.wait({offers})


async def test_a_client_that_comes_costs_its_job_one_update(temporal: WorkflowEnvironment) -> None:
    """Init and Register are answered, and nothing of them is stored."""
    async with harness(temporal, a_job()) as world, world.peer():
        assert await stored(world) == {Updates.ATTACH: 1}


async def test_a_gateway_that_comes_back_costs_each_job_one_update(temporal: WorkflowEnvironment) -> None:
    """A gateway that stops does not report the end of its streams. Ten thousand reports at once would delay the new
    attachments."""
    async with harness(temporal, a_job()) as world, world.peer() as peer:
        before = (await world.status()).state.attachment
        await world.gateway.stop()
        assert (await world.status()).state.attachment == before
        await world.gateway.start()
        await world.settled(lambda status: status.state.attachment not in (None, before))
        await peer.until(peer.attached.is_set)
        assert await stored(world) == {Updates.ATTACH: 2}


async def test_what_changes_nothing_is_refused_and_not_stored(temporal: WorkflowEnvironment) -> None:
    """An attachment that is sent again is refused, and so is an end that is known already."""
    async with harness(temporal, a_job()) as world:
        await world.tell(Updates.ATTACH, A)
        assert await refusal(world, Updates.ATTACH, A) == ErrorTypes.ATTACHMENT_KNOWN
        await world.tell(Updates.DETACH, A.session)
        assert await refusal(world, Updates.DETACH, A.session) == ErrorTypes.ATTACHMENT_KNOWN
        assert await stored(world) == {Updates.ATTACH: 1, Updates.DETACH: 1}


async def test_an_attachment_that_arrives_after_its_end_is_not_taken(temporal: WorkflowEnvironment) -> None:
    """An attachment that an outage delays until after its end is refused. The end would never be sent again."""
    async with harness(temporal, a_job()) as world:
        await world.tell(Updates.DETACH, A.session)
        assert await refusal(world, Updates.ATTACH, A) == ErrorTypes.ATTACHMENT_OVER
        assert (await world.status()).state.attachment is None


async def test_an_attachment_that_was_replaced_does_not_come_back(temporal: WorkflowEnvironment) -> None:
    """A gateway that repeats it late does not take the job away from the gateway that holds its stream."""
    async with harness(temporal, a_job()) as world:
        await world.tell(Updates.ATTACH, A)
        await world.tell(Updates.ATTACH, B)
        assert await refusal(world, Updates.ATTACH, A) == ErrorTypes.ATTACHMENT_OVER
        assert (await world.status()).state.attachment == B


async def test_a_client_that_leaves_while_it_is_attached_is_detached_behind_it(temporal: WorkflowEnvironment) -> None:
    """The updates are stored in the order in which they were sent, however long that takes: the job ends up without a stream."""
    async with harness(temporal, a_job()) as world, world.peer() as peer:
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await world.control.stop()
        attaching = asyncio.create_task(peer.attach())
        async with asyncio.timeout(60):
            while not world.gateway.storing:
                await asyncio.sleep(0.01)
        attaching.cancel()
        await peer.cut()
        await world.control.start()
        await _until_stored(world, Counter({Updates.ATTACH: 2, Updates.DETACH: 2}))
        assert (await world.status()).state.attachment is None


async def _until_stored(world: Harness, updates: Counter[str]) -> None:
    async with asyncio.timeout(60):
        while await stored(world) != updates:
            await asyncio.sleep(0.05)


async def test_a_job_that_was_lost_has_its_stream_and_its_progress_again(temporal: WorkflowEnvironment) -> None:
    """The job's workflow is terminated and registered again. Its client does nothing, and a hot switch is possible as before."""
    async with harness(temporal, a_job(), offer_again=0.2) as world, world.peer() as peer:
        await peer.report_progress(Progress(incarnation="life-1", step=1, steps_lost=0))
        before = (await world.status()).state
        await world.entity.terminate("lost")
        await register(world.client, world.job)

        def whole(status: JobStatus) -> bool:
            return status.state.attachment is not None and status.state.progress is not None

        after = (await world.settled(whole)).state
        assert (after.attachment, after.progress, after.introduced) == (before.attachment, before.progress, True)
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.ended == []


async def test_a_gateway_that_was_never_told_the_progress_keeps_that_of_the_job(temporal: WorkflowEnvironment) -> None:
    """The gateway learnt the progress when the client came. The job keeps it although its workflow is lost."""
    async with harness(temporal, a_job(), offer_again=0.2) as world:
        await world.first_step()
        async with world.peer():
            await world.entity.terminate("lost")
            await register(world.client, world.job)
            status = await world.settled(lambda status: status.state.attachment is not None)
            assert status.state.progress == Progress(incarnation="life-1", step=1)


async def test_an_attachment_that_is_offered_again_is_not_stored_again(temporal: WorkflowEnvironment) -> None:
    """An offer that is repeated round after round is not stored, and the client notices nothing."""
    async with harness(temporal, a_job(), offer_again=0.02, keep_alive=0.05) as world, world.peer() as peer:
        await peer.until(lambda: len(peer.keep_alives) >= 20)
        assert await stored(world) == {Updates.ATTACH: 1}
        assert peer.ended == []


async def test_a_stream_that_the_job_has_given_up_ends(temporal: WorkflowEnvironment) -> None:
    """The client subscribes again, and the job has a stream again."""
    async with harness(temporal, a_job(), offer_again=0.1) as world, world.peer() as peer:
        await world.tell(Updates.ATTACH, A)  # another gateway, whose word to this one was lost
        await peer.until(lambda: bool(peer.ended))
        assert peer.ended == ["ABORTED: another subscriber took over"]
        await world.settled(lambda status: status.state.attachment is not None and status.state.attachment != A)


async def test_a_job_that_is_recovered_is_known_to_be(temporal: WorkflowEnvironment) -> None:
    """The gateway knows that the job is recovered, so that its client comes first when all come back at once."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        assert not (await _contact(world)).recovering
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        assert (await _contact(world)).recovering
        await peer.pause()
        await world.incident()


async def _contact(world: Harness) -> Contact:
    contact: Contact = await world.entity.query(ids.Queries.CONTACT, result_type=Contact)
    return contact
