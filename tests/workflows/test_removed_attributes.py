"""A search attribute that an operator removes from the server: it is for display only, and its loss stops no recovery."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from rekindle.absent import ABSENT
from rekindle.model.mode import Outcome
from rekindle.temporal import WANTED, Attributes, register_attributes, registered_attributes
from rekindle.worker_plugin import plugin
from tests.fakes.peer import Script
from tests.support.harness import a_job, harness, sub_health, training
from tests.support.temporal import skipping_server
from workers import attributes
from workers.control import MODES
from workflows.training_job import TrainingJob


@pytest_asyncio.fixture(loop_scope="function")
async def own_server() -> AsyncIterator[WorkflowEnvironment]:
    """Others need their attributes."""
    env = await skipping_server()
    yield env
    await env.shutdown()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attributes, "LOOKED_AGAIN", 0.1)
    yield
    ABSENT.names = frozenset()


async def remove(env: WorkflowEnvironment, *names: str) -> None:
    request = RemoveSearchAttributesRequest(namespace=env.client.namespace, search_attributes=names)
    await env.client.operator_service.remove_search_attributes(request)


@pytest.mark.parametrize("may_register", [True, False], ids=["registered again", "nobody may register it"])
@pytest.mark.parametrize("names", [[Attributes.VERDICT.name], sorted(WANTED)], ids=["one", "all"])
async def test_a_recovery_goes_on_without_what_people_look_at(
    own_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, names: list[str], *, may_register: bool
) -> None:
    """The recovery goes to its end, and so does the next one; what is in their histories is replayed by workers that have the
    attributes."""

    async def refused(*_: object) -> None:
        raise RPCError("request unauthorized", RPCStatusCode.PERMISSION_DENIED, b"")

    if not may_register:
        monkeypatch.setattr(attributes, "register_attributes", refused)
    async with training(own_server, a_job(), Script(pauses=False)) as (world, peer):
        keeping = asyncio.create_task(attributes.SearchAttributesKept(own_server.client).keep())
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        recovery = await world.running()
        await remove(own_server, *names)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        peer.script.pauses = True
        world.cluster.node_names.append("node-9")
        await world.fault(sub_health(pod_rank=0, node="node-0", name="e2"))
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        keeping.cancel()
        there = await registered_attributes(own_server.client)
        assert set(there) == set(WANTED) - (set() if may_register else set(names))
        await register_attributes(own_server.client, names)  # the end of the test lists by them
        ABSENT.names = frozenset()
        runs = own_server.client.list_workflows(f"WorkflowId = '{world.entity.id}'")
        handles = [own_server.client.get_workflow_handle(run.id, run_id=run.run_id) async for run in runs]
        histories = [await handle.fetch_history() for handle in (recovery, *handles)]
        for history in histories:
            await Replayer(workflows=[TrainingJob, *MODES], plugins=[plugin()]).replay_workflow(history)


async def test_an_attribute_of_another_type_is_left_out(own_server: WorkflowEnvironment) -> None:
    """The attribute is another user's, and stays as it is."""
    await remove(own_server, Attributes.SECONDS.name)
    kind = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    request = AddSearchAttributesRequest(namespace=own_server.client.namespace, search_attributes={Attributes.SECONDS.name: kind})
    await own_server.client.operator_service.add_search_attributes(request)
    await attributes.SearchAttributesKept(own_server.client).look()
    assert ABSENT.names == {Attributes.SECONDS.name}
    assert (await registered_attributes(own_server.client))[Attributes.SECONDS.name] == kind
    async with training(own_server, a_job()) as (world, _):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_an_attribute_that_is_back_is_told_when_all_of_the_server_knows_it(
    own_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it would still fail the task. What lives for long is listed again."""
    await remove(own_server, Attributes.VERDICT.name)
    kept = attributes.SearchAttributesKept(own_server.client)
    await kept.look()
    await kept.look()
    assert ABSENT.names == {Attributes.VERDICT.name}
    monkeypatch.setattr(attributes, "SURE", 0.0)
    await kept.look()
    ABSENT.names = frozenset()
    async with harness(own_server, a_job()) as world:
        row = f"{Attributes.JOB.name} = '{world.job.name}' AND ExecutionStatus = 'Running'"
        await _listed(own_server, row)
        await remove(own_server, *WANTED)
        await kept.look()
        await kept.look()
        assert ABSENT.names == frozenset()
        await _listed(own_server, row)


async def _listed(env: WorkflowEnvironment, query: str) -> None:
    """A list is a moment late."""
    async with asyncio.timeout(60):
        while not [run async for run in env.client.list_workflows(query)]:
            await asyncio.sleep(0.1)
