"""Table of clusters: the driver of each for the control worker and the watcher, and what the gateway needs of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activities.clusters.local import LocalCluster
from activities.clusters.port import Cluster
from rekindle.model.rule_file import rules_of
from rekindle.settings import Settings
from workers.other_controller import refuse_beside_another_controller
from workers.process import patiently

if TYPE_CHECKING:
    from activities.clusters.api_server import Api
    from activities.clusters.kubernetes.driver import KubernetesCluster
    from activities.clusters.kubernetes.public_faults import PublicFaults

Identify = Callable[[], Awaitable[str]]
"""Names the Temporal namespace in which the jobs' workflows live."""


@dataclass(frozen=True)
class ClusterRow:
    """Opens the parts of one cluster. What they need is closed with the given stack."""

    driver: Callable[[Settings, Identify, AsyncExitStack, bool], Awaitable[Cluster]]
    """Opens the driver. The last argument is True for the process that acts for the installation."""

    callers: "Callable[[Settings, AsyncExitStack], Awaitable[KubernetesCluster]] | None" = None
    """Opens what identifies the gateway's callers. None: all callers are processes of this machine, and may do everything."""

    public_faults: "Callable[[Settings, AsyncExitStack], Awaitable[PublicFaults]] | None" = None
    """Opens the store of faults that platforms report. None: there is none."""


async def _local(settings: Settings, _identify: Identify, _ends: AsyncExitStack, _recovers: bool) -> Cluster:
    return LocalCluster(settings.socket, rules_of(settings.rules))


async def _kubernetes(settings: Settings, identify: Identify, ends: AsyncExitStack, recovers: bool) -> Cluster:
    from activities.clusters.api_server import check_version
    from activities.clusters.kubernetes.claims import Claims
    from activities.clusters.kubernetes.driver import KubernetesCluster

    api = await _api(settings, ends)
    await patiently(lambda: check_version(api))
    await refuse_beside_another_controller(api, settings)
    claims = Claims(api, settings.namespace, identify)
    if recovers:
        keeping = asyncio.create_task(claims.keep())
        ends.callback(keeping.cancel)
    return KubernetesCluster(api, settings, claims=claims)


async def _callers(settings: Settings, ends: AsyncExitStack) -> "KubernetesCluster":
    from activities.clusters.kubernetes.driver import KubernetesCluster

    return KubernetesCluster(await _api(settings, ends), settings)


async def _public_faults(settings: Settings, ends: AsyncExitStack) -> "PublicFaults":
    from activities.clusters.kubernetes.public_faults import PublicFaults

    return PublicFaults(await _api(settings, ends))


async def _api(settings: Settings, ends: AsyncExitStack) -> "Api":
    from activities.clusters.api_server import Api  # over 2 s and 190 MB

    return await ends.enter_async_context(Api(settings.kubeconfig))


ROWS = {"local": ClusterRow(_local), "kubernetes": ClusterRow(_kubernetes, _callers, _public_faults)}


def row_of(settings: Settings) -> ClusterRow:
    return ROWS[settings.cluster]


@asynccontextmanager
async def cluster_of(settings: Settings, identify: Identify, *, recovers: bool = False) -> AsyncIterator[Cluster]:
    """Yields the driver of the cluster until the block ends. Waits for an API server that does not answer.

    Args:
        identify: names the Temporal namespace in which the jobs' workflows live.
        recovers: this process acts for the installation, and renews its Lease.

    Raises:
        BadInput: the kubeconfig or the rules cannot be used, or the API server is too old.
        Refused: another controller is alive; Forbidden: our identity may not look.
    """
    async with AsyncExitStack() as ends:
        cluster = await row_of(settings).driver(settings, identify, ends, recovers)
        ends.push_async_callback(cluster.close)
        yield cluster
