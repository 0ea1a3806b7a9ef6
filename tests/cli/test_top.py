"""`rekindle top` outlives an outage of Temporal, and ends with Ctrl-C."""

import asyncio
import re
import signal

import grpc
from temporalio.testing import WorkflowEnvironment

from tests.cli.test_recover import Deaf, environment, until_said
from tests.fakes.proxy import Proxy
from tests.support.commands import begun
from tests.support.harness import a_job, training


class Away(Deaf):
    """Answers no list while it is away."""

    is_away = True

    async def before(self, caller: str, method: str, request: bytes) -> None:
        if self.is_away and method == "ListWorkflowExecutions":
            raise grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "away")


async def test_top_says_that_temporal_is_away_and_goes_on_trying(temporal: WorkflowEnvironment) -> None:
    """The error is on stderr, and the jobs are shown with the time when Temporal is back. Ctrl-C leaves neither colours nor a
    traceback."""
    server = Away()
    async with training(temporal, a_job()) as (world, _peer):
        target = world.client.service_client.config.target_host
        async with Proxy("top", target, server) as proxy:
            command = await begun(("top",), {**environment(world, proxy.address), "COLUMNS": "80"})
            await until_said(command, "error: Temporal at")
            server.is_away = False
            seen = b""
            async with asyncio.timeout(60):
                while not re.search(rf"{world.job.name} .*as of 20".encode(), seen, re.DOTALL):
                    line = await command.stdout.readline()
                    assert line, "it ended without the job"
                    seen += line
            command.send_signal(signal.SIGINT)
            output, errors = await command.communicate()
    assert command.returncode == 130
    assert b"Traceback" not in errors
    assert b"\x1b" not in seen + output + errors
    assert max(map(len, (seen + output).decode().splitlines())) <= 80
