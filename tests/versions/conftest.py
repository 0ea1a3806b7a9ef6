"""A server of its own: with a current version, workers without one get nothing to do."""

from collections.abc import AsyncIterator

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from tests.support.temporal import skipping_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real Temporal server for these tests; builds of tests never share a name."""
    env = await skipping_server(())
    yield env
    await env.shutdown()
