"""Clusters with real controllers."""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from activities.clusters.api_server import Api
from rekindle.cli.stack import ClusterKind, Machine, Stack, running
from tests.kubernetes.world.trained_examples import kubeconfig_of, watch_anew
from tests.real_controllers.controllers import Controller, controllers


@asynccontextmanager
async def cluster_with(run: Sequence[Controller]) -> AsyncIterator[Stack]:
    """The product on a cluster of three nodes, with these controllers and no others. Objects that the controllers install
    remain."""
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-real-")))
        stack = await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES)))
        api = await ends.enter_async_context(Api(kubeconfig_of(stack)))
        await ends.enter_async_context(controllers(run, api, kubeconfig_of(stack), folder))
        await watch_anew(stack)
        yield stack
