"""Service of the gateways, its endpoints, and the metrics of the processes."""

from collections.abc import AsyncIterator

from activities.clusters.api_server import Object
from rekindle.model.bounds import few
from rekindle.model.examined import Link, failed, ok, warning
from workers.examination.installation import APPLY, PORT, Installation, asked, found
from workers.other_controller import PART_OF

GATEWAYS = "service of the gateways"

PODS = "rekindle-gateway-"
"""Beginning of the names of the gateways' pods, which their StatefulSet makes."""

MONITORS = "/apis/monitoring.coreos.com/v1"


async def services(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the Service by which training sides find the gateways, and where metrics are."""
    yield await asked(GATEWAYS, _service(installation))
    yield await asked("metrics", _metrics(installation))


async def _service(installation: Installation) -> Link:
    where = f"{installation.service} in namespace {installation.namespace}"
    service = await found(installation.api.get(installation.path("/api/v1", "services", installation.service)))
    if service is None:
        if installation.observes:
            return ok(GATEWAYS, "none, as this installation only observes")
        return failed(GATEWAYS, f"{where} is missing: no training side finds a gateway", APPLY)
    if problem := _problem(installation, service):
        return problem
    ready = await _ready(installation)
    if strangers := [name for name in ready if not name.startswith(PODS)]:
        words = f"{where} leads to pods that are no gateways: {few(strangers)}"
        return failed(GATEWAYS, words, f"{APPLY}: it has the selector of the Service")
    if ready:
        return ok(GATEWAYS, f"{where} leads to {len(ready)} ready gateways ({few(ready)})")
    look = f"kubectl -n {installation.namespace} describe statefulset rekindle-gateway"
    mend = f"look at the gateways: {look}, and at the selector of the Service"
    return failed(GATEWAYS, f"{where} leads to no ready gateway", mend)


def _problem(installation: Installation, service: Object) -> Link | None:
    """Returns what is wrong with the Service itself. None: nothing is."""
    where = f"{installation.service} in namespace {installation.namespace}"
    if (service["metadata"].get("labels") or {}).get(PART_OF) != "rekindle":
        words = f"{where} is another controller's"
        if installation.observes:
            return ok(GATEWAYS, f"{words}, and this installation only observes")
        return failed(
            GATEWAYS, words, "take it over with takeOver or service.keep of the chart, or use another name: service.name"
        )
    if PORT not in [port["port"] for port in service["spec"].get("ports") or ()]:
        return failed(GATEWAYS, f"{where} has no port {PORT}", APPLY)
    return None


async def _ready(installation: Installation) -> list[str]:
    """Returns the pods of its ready endpoints, each once although it may have two addresses. Those without a condition count."""
    slices = installation.path("/apis/discovery.k8s.io/v1", "endpointslices")
    listing = await installation.api.list(slices, labelSelector=f"kubernetes.io/service-name={installation.service}")
    endpoints: list[Object] = [one for item in listing.items for one in item.get("endpoints") or ()]
    ready = [one for one in endpoints if (one.get("conditions") or {}).get("ready") is not False]
    return sorted({(one.get("targetRef") or {}).get("name") or one["addresses"][0] for one in ready})


async def _metrics(installation: Installation) -> Link:
    if not installation.health_port:
        words = "none are exposed, since REKINDLE_HEALTH_PORT is 0; nor are probes answered"
        return warning("metrics", words, "set REKINDLE_HEALTH_PORT=8080")
    words = f"exposed on port {installation.health_port} of each pod"
    listed = await found(installation.api.get(MONITORS))
    if listed is None:
        return ok("metrics", f"{words}; the cluster has no PodMonitors")
    if await found(installation.api.get(installation.path(MONITORS, "podmonitors", "rekindle"))):
        return ok("metrics", f"{words}, and read by the PodMonitor rekindle")
    return ok("metrics", f"{words}; no PodMonitor reads them (podMonitor.enabled=true)")
