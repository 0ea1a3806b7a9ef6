"""The operator says that its kind is not served, and serves it as soon as it is."""

import asyncio
from pathlib import Path

from rekindle.settings import Settings
from tests.fakes.scripted_api import scripted_api
from workers.operator import Operator

PATH = "/apis/rekindle.io/v1/trainingjobs"


async def test_an_operator_without_its_kind_is_not_ready(tmp_path: Path) -> None:
    """An administrator has not applied the definition yet. The operator waits for it."""
    async with scripted_api(tmp_path) as (scripted, api):
        scripted.refused["GET", PATH] = (404, "the server could not find the requested resource")
        operator = Operator(api, Settings(cluster="kubernetes"))
        running = asyncio.create_task(operator.run())
        async with asyncio.timeout(60):
            while not operator.problem:
                await asyncio.sleep(0.01)
            assert operator.problem == "rekindle.io/v1 of trainingjobs is not served: install the chart rekindle-crds"
            del scripted.refused["GET", PATH]
            while operator.problem:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
