"""Driver of the cluster that the settings name, for the control worker and the watcher."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from activities.clusters.local import LocalCluster
from activities.clusters.port import Cluster
from rekindle.model.rule_file import rules_of
from rekindle.settings import Settings
from workers.process import patiently
from workers.rivals import refuse_beside_another_controller


@asynccontextmanager
async def cluster_of(
    settings: Settings, identify: Callable[[], Awaitable[str]], *, recovers: bool = False
) -> AsyncIterator[Cluster]:
    """Yields the driver of the cluster until the block ends. Waits for an API server that does not answer.

    Args:
        identify: names the Temporal namespace in which the jobs' workflows live.
        recovers: this process acts for the installation, and tells others that it lives.

    Raises:
        BadInput: the kubeconfig or the rules cannot be used, or the API server is too old.
        Refused: another controller is alive; Forbidden: our identity may not look.
    """
    async with AsyncExitStack() as ends:
        if settings.cluster == "local":
            cluster: Cluster = LocalCluster(settings.socket, rules_of(settings.rules))
        else:
            cluster = await _on_kubernetes(settings, identify, ends, recovers=recovers)
        ends.push_async_callback(cluster.close)
        yield cluster


async def _on_kubernetes(
    settings: Settings, identify: Callable[[], Awaitable[str]], ends: AsyncExitStack, *, recovers: bool
) -> Cluster:
    from activities.clusters.api_server import Api, check_version  # over 2 s and 190 MB
    from activities.clusters.kubernetes.claims import Claims
    from activities.clusters.kubernetes.driver import KubernetesCluster

    api = await ends.enter_async_context(Api(settings.kubeconfig))
    await patiently(lambda: check_version(api))
    await refuse_beside_another_controller(api, settings)
    claims = Claims(api, settings.namespace, identify)
    if recovers:
        keeping = asyncio.create_task(claims.keep())
        ends.callback(keeping.cancel)
    return KubernetesCluster(api, settings, claims=claims)
