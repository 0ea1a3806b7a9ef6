"""A gateway that starts in the place of another one: all its clients come at once."""

import asyncio

import grpc
from temporalio.testing import WorkflowEnvironment

from rekindle.policy.modes import job_phase
from rekindle.temporal import Attributes
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.support.harness import GatewayProcess, Harness, a_job, harness, training


async def test_clients_of_jobs_that_train_are_let_in_without_a_question(temporal: WorkflowEnvironment) -> None:
    """The gateway lists them at its start: it knows them also while no control worker answers."""
    async with training(temporal, a_job()) as (world, _peer):
        await _lists(world, job_phase.TRAINING)
        await world.control.stop()
        try:
            assert await _codes_at_another_gateway(world) == [0, 0]
        finally:
            await world.control.start()


async def test_a_job_that_never_attached_is_asked(temporal: WorkflowEnvironment) -> None:
    """A list does not say of it whether anything may be recovered, nor that its client was introduced."""
    async with harness(temporal, a_job()) as world:
        await _lists(world, job_phase.STARTING)
        assert await _codes_at_another_gateway(world, "Register") == [408]


async def test_progress_is_known_again_when_the_stream_is_here(temporal: WorkflowEnvironment) -> None:
    """The list does not contain the progress. The gateway asks for it in its first round, so that a lost workflow of the job
    receives it."""
    async with training(temporal, a_job()) as (world, peer):
        await _lists(world, job_phase.TRAINING)
        another = await GatewayProcess(world.client, f"another-{world.job.id}", offer_again=0.1).start()
        world.gateways.append(another)
        peer.address = another.address
        await peer.cut()
        await peer.attach()
        assert another._gateway
        async with asyncio.timeout(60):
            while another._gateway._introductions.progress(world.job.id) is None:
                await asyncio.sleep(0.03)


async def _lists(world: Harness, phase: str) -> None:
    """Waits until Temporal lists the job in this phase."""
    query = f"WorkflowId = '{world.entity.id}' AND {Attributes.PHASE.name} = '{phase}'"
    async with asyncio.timeout(60):
        while not (await world.client.count_workflows(query)).count:
            await asyncio.sleep(0.03)


async def _codes_at_another_gateway(world: Harness, *methods: str) -> list[int]:
    another = await GatewayProcess(world.client, f"another-{world.job.id}").start()
    me = wire.ClientInfo(jobId=world.job.id, role="taskd")
    try:
        async with grpc.aio.insecure_channel(another.address) as channel:
            stub = RecoverStub(channel)
            return [(await getattr(stub, name)(me, timeout=10)).code for name in methods or ("Init", "Register")]
    finally:
        await another.stop()
