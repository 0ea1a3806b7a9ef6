"""Fixtures that several folders share."""

from collections.abc import AsyncIterator

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from tests.support.temporal import skipping_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real Temporal server for the whole run; jobs of tests never share an id."""
    env = await skipping_server()
    yield env
    await env.shutdown()
