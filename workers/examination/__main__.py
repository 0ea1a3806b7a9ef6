"""Entry point of the examination: `python -P -m workers.examination`. Started by `rekindle doctor`.

Writes one link a line, as JSON.
"""

import sys
from collections.abc import AsyncIterator, Callable

from activities.clusters.api_server import Api
from rekindle.model.examined import Health, Link
from rekindle.settings import Settings, read_settings
from workers.examination import access, admission, claims, network, processes, server, webhook
from workers.examination.installation import Installation, installation_of
from workers.process import NAMESPACE_OF_POD, run

PARTS: tuple[Callable[[Installation], AsyncIterator[Link | None]], ...] = (
    server.kinds,
    processes.processes,
    access.rights,
    network.services,
    admission.objects,
    webhook.webhook,
    claims.installations,
)
"""Parts of an installation in the order in which they depend on each other."""


async def examine(api: Api, namespace: str, own: Settings | None = None) -> AsyncIterator[Link]:
    """Yields each link as soon as it is examined. Without an API server there is only one.

    Args:
        namespace: of the installation.
        own: settings of the pod in which we run. None: we run elsewhere.
    """
    first = await server.reached(api)
    yield first
    if first.health is Health.FAILED:
        return
    installation = await installation_of(api, namespace, own)
    for part in PARTS:
        async for link in part(installation):
            if link:
                yield link


def _is_in_its_pod(settings: Settings) -> bool:
    """Returns whether we run in a pod of the installation, whose variables are those of our own process."""
    is_in_pod = settings.kubeconfig is None and NAMESPACE_OF_POD.is_file()
    return is_in_pod and NAMESPACE_OF_POD.read_text().strip() == settings.namespace


async def main() -> None:
    settings = read_settings()
    async with Api(settings.kubeconfig) as api:
        async for link in examine(api, settings.namespace, settings if _is_in_its_pod(settings) else None):
            sys.stdout.write(link.model_dump_json() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    run(main)
