"""Messages that mean nothing, as any client of Temporal may send them: by its UI, without an input, or from another language."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Signals, Updates
from rekindle.model.mode import Outcome
from tests.support.harness import RESUMES, a_job, node_fault, training

ODD = [pytest.param([], id="nothing"), pytest.param([None], id="null"), pytest.param([1, 2, 3], id="three things")]
TAKING = sorted({value for key, value in vars(Updates).items() if key.isupper()} - {Updates.LIFT})
"""Updates that take an argument."""
TOLD = sorted({value for key, value in vars(Signals).items() if key.isupper()} - {Signals.UPGRADED})


async def _is_refused(workflow: WorkflowHandle[Any, Any], update: str, arguments: list[object]) -> None:
    async with asyncio.timeout(12):
        with pytest.raises(WorkflowUpdateFailedError):
            await workflow.execute_update(update, args=arguments)


@pytest.mark.parametrize("arguments", ODD)
async def test_an_update_that_means_nothing_is_refused_and_the_job_lives(
    temporal: WorkflowEnvironment, arguments: list[object]
) -> None:
    """The sender receives an error, and the state stays as it was. A fault that comes afterwards is recovered."""
    async with training(temporal, a_job()) as (world, _peer):
        before = (await world.status()).state
        for update in TAKING:
            await _is_refused(world.entity, update, arguments)
        assert (await world.status()).state == before
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED


@pytest.mark.parametrize("arguments", ODD)
async def test_a_signal_that_means_nothing_is_dropped(temporal: WorkflowEnvironment, arguments: list[object]) -> None:
    """A signal stays in the history: a job's workflow that failed over it would fail for ever. A running recovery ends its mode
    all the same."""
    async with training(temporal, a_job()) as (world, _peer):
        for signal in TOLD:
            await world.entity.signal(signal, args=arguments)
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        for signal in TOLD:
            await world.recovery.signal(signal, args=arguments)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
