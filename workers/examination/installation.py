"""Installation that is examined, as its objects describe it, and what all of its examinations share."""

import json
from collections.abc import Awaitable
from dataclasses import dataclass

from activities.clusters.api_server import Api, Object
from rekindle.errors import MALFORMED, ClusterError, Forbidden, NotFound
from rekindle.model.examined import Link, unknown
from rekindle.settings import Settings

APPLY = "helm upgrade the release, or kubectl apply its overlay again"
"""Action that brings back every object of an installation."""

AS_ADMINISTRATOR = "run it with the kubeconfig of an administrator: rekindle doctor --kubeconfig FILE"

SERVICE, PORT = "clusterd-grpc-svc", 8899

TRUE = ("true", "1", "yes", "on", "t", "y")
"""Values of variables that settings take for true."""


@dataclass(frozen=True)
class Installation:
    """Installation in one namespace."""

    api: Api
    namespace: str
    served: tuple[str, ...] = ()
    """Namespaces whose jobs it serves; empty: all."""

    service: str = SERVICE
    """Name of the Service of its gateways."""

    observes: bool = False
    health_port: int = 8080
    is_read: bool = False
    """True if this is what its settings say. Otherwise these are the defaults, or what our own pod has."""

    def path(self, api: str, plural: str, name: str = "") -> str:
        """Returns the path of a collection in its namespace, or of an object there."""
        return f"{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


async def installation_of(api: Api, namespace: str, own: Settings | None = None) -> Installation:
    """Reads the settings of the installation in a namespace. Defaults stand for what cannot be read.

    Args:
        own: settings of our own pod, which stand for those that its account may not read.
    """
    nothing = Installation(api, namespace)
    try:
        data = await _variables(nothing)
        return Installation(
            api,
            namespace,
            served=tuple(map(str, json.loads(data.get("REKINDLE_NAMESPACES") or "[]"))),
            service=_service(data.get("REKINDLE_GATEWAY_ADDRESS") or "", namespace),
            observes=str(data.get("REKINDLE_OBSERVE")).lower() in TRUE,
            health_port=int(data.get("REKINDLE_HEALTH_PORT") or 0),
            is_read=bool(data),
        )
    except (ClusterError, *MALFORMED):
        if own is None:
            return nothing
        service, port = _service(own.gateway_address, namespace), own.health_port
        return Installation(api, namespace, own.namespaces, service, own.observe, port)


def _service(address: str, namespace: str) -> str:
    """Returns the Service of the gateways that an address names; the usual one if the address is not inside the namespace."""
    name, _, place = address.rpartition(":")[0].partition(".")
    return name if name and place.partition(".")[0] in ("", namespace) else SERVICE


async def _variables(installation: Installation) -> Object:
    """Returns the variables of its control worker, as its ConfigMaps hold them. kustomize gives them other names than Helm.

    Variables of the container itself have precedence, as they have in the process.
    """
    control = await installation.api.get(installation.path("/apis/apps/v1", "deployments", "rekindle-control"))
    data: Object = {}
    container = control["spec"]["template"]["spec"]["containers"][0]
    for source in container.get("envFrom") or ():
        if name := (source.get("configMapRef") or {}).get("name"):
            data |= (await installation.api.get(installation.path("/api/v1", "configmaps", name))).get("data") or {}
    return data | {one["name"]: one["value"] for one in container.get("env") or () if one.get("value")}


async def asked(name: str, answer: Awaitable[Link | None]) -> Link | None:
    """Returns the link that was examined, or why it could not be. None: the installation has no such part."""
    try:
        return await answer
    except Forbidden as error:
        return unknown(name, f"not examined: {error}", AS_ADMINISTRATOR)
    except ClusterError as error:
        return unknown(name, f"not examined: {error}")
    except MALFORMED as error:
        return unknown(name, f"not examined: {type(error).__name__}: {error}")


async def found(answer: Awaitable[Object]) -> Object | None:
    """Returns the object, or None if there is none."""
    try:
        return await answer
    except NotFound:
        return None
