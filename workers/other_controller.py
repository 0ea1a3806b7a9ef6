"""Detects another controller of the same jobs: a running ClusterD. Called by `workers.clusters` before anything is started."""

from typing import TYPE_CHECKING

from rekindle.errors import NotFound, Refused
from rekindle.settings import Settings
from workers.process import patiently

if TYPE_CHECKING:  # over 2 s and 190 MB, for Kubernetes only
    from activities.clusters.api_server import Api

NAMESPACE = "mindx-dl"
SERVICE = "clusterd-grpc-svc"
"""Namespace and service at which clients look for their controller, ours too. Source: the wire contract."""

PART_OF = "app.kubernetes.io/part-of"
"""Label of all objects that we install; its value is `rekindle`."""


async def refuse_beside_another_controller(api: "Api", settings: Settings) -> None:
    """Returns if no ClusterD runs, or if the settings allow for one. Waits for an API server that does not answer.

    Raises:
        Refused: one is alive; the message names its service and the ways out.
        Forbidden: our identity may not look; the message says at what.
    """
    if settings.take_over or settings.observe:
        return
    if addresses := await patiently(lambda: _rival(api)):
        raise Refused(
            f"a ClusterD is alive: service {SERVICE} in namespace {NAMESPACE} has ready endpoints ({', '.join(addresses)}), "
            f"and two controllers must not recover one job. Stop it, or set REKINDLE_TAKE_OVER=true to serve jobs beside it, "
            f"or REKINDLE_OBSERVE=true to order nothing and only show what would be done"
        )


async def _rival(api: "Api") -> list[str]:
    """Returns the ready addresses of a ClusterD service that is not ours. Endpoints without a readiness condition count as
    ready."""
    try:
        service = await api.get(f"/api/v1/namespaces/{NAMESPACE}/services/{SERVICE}")
    except NotFound:
        return []
    if service["metadata"].get("labels", {}).get(PART_OF) == "rekindle":
        return []
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    listing = await api.list(slices, labelSelector=f"kubernetes.io/service-name={SERVICE}")
    endpoints = [endpoint for one in listing.items for endpoint in one.get("endpoints") or ()]
    ready = [endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready") is not False]
    return sorted({address for endpoint in ready for address in endpoint["addresses"]})
