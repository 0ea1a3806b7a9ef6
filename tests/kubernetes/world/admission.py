"""The admission webhook in a test: its manifests, and its process under the account that they give it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import check_output
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from rekindle.cli.ports import free_ports
from rekindle.errors import Conflict, NotFound
from simulators.kubernetes.installation import NAMESPACE, PATHS
from simulators.kubernetes.servers import Endpoint
from tests.fakes.api_proxy import ApiProxy, api_proxy
from tests.gateway.processes import says_ready, started
from tests.kubernetes.world.manifests import ROOT

FOLDER = ROOT / "deploy" / "components" / "webhook"
ACCOUNT = "rekindle-webhook"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
OF_KIND = {
    **PATHS,
    "Secret": f"/api/v1/namespaces/{NAMESPACE}/secrets",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "EndpointSlice": f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
    "MutatingWebhookConfiguration": CONFIGURATIONS.format("mutating"),
    "ValidatingWebhookConfiguration": CONFIGURATIONS.format("validating"),
}


@dataclass
class Installed:
    """Objects of the webhook, and the address at which the API server calls it."""

    api: Api
    proxy: ApiProxy
    """API server, under the account of the webhook."""
    address: str
    port: int

    @asynccontextmanager
    async def running(self, directory: Path, **variables: object) -> AsyncIterator[str]:
        """Runs the webhook, and yields the address that it prints."""
        own = {"REKINDLE_CLUSTER": "kubernetes", "REKINDLE_KUBECONFIG": self.proxy.kubeconfig}
        own |= {"POD_IP": self.address, "REKINDLE_WEBHOOK_PORT": self.port}
        async with started("webhook", directory, **{**own, **variables}) as process:
            yield await says_ready(process)


def objects() -> list[Object]:
    """Returns the objects of the manifests that an API server without nodes needs. The Service has no pods."""
    files = ("rbac.yaml", "webhook.yaml", "mutating.yaml", "validating.yaml")
    found = [one for file in files for one in yaml.safe_load_all((FOLDER / file).read_text()) if one["kind"] in OF_KIND]
    for one in found:
        if one["kind"] == "Service":
            del one["spec"]["selector"]
    return found


def address_of_this_machine() -> str:
    """Returns an address that endpoints of a Service may have."""
    found = [one for one in check_output(["hostname", "-I"], text=True).split() if "." in one]
    if not found:
        pytest.skip("this machine has no address but 127.0.0.1, at which no API server calls a Service")
    return found[0]


@asynccontextmanager
async def installed(api: Api, endpoint: Endpoint, directory: Path, failure_policy: str = "Ignore") -> AsyncIterator[Installed]:
    """Applies the manifests, and removes them at the end: a webhook that is away delays every job."""
    address, (port,) = address_of_this_machine(), free_ports(1)
    applied = [*objects(), _endpoints(address, port)]
    with suppress(Conflict):
        await api.create(PATHS["Namespace"], {"metadata": {"name": NAMESPACE}})
    try:
        for one in applied:
            for webhook in one.get("webhooks", ()):
                webhook["failurePolicy"] = failure_policy
            await api.create(OF_KIND[one["kind"]], one)
        async with api_proxy(await _kubeconfig(api, endpoint, directory), directory) as proxy:
            yield Installed(api, proxy, address, port)
    finally:
        for one in reversed(applied):
            await _delete(api, f"{OF_KIND[one['kind']]}/{one['metadata']['name']}")


def _endpoints(address: str, port: int) -> Object:
    metadata = {"name": ACCOUNT, "labels": {"kubernetes.io/service-name": ACCOUNT}}
    endpoints = [{"addresses": [address], "conditions": {"ready": True}}]
    ports = [{"name": "webhook", "port": port, "protocol": "TCP"}]
    return {"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}


async def _kubeconfig(api: Api, endpoint: Endpoint, directory: Path) -> Path:
    path = directory / "kubeconfig-webhook"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await api.create(f"{PATHS['ServiceAccount']}/{ACCOUNT}/token", body)
    Endpoint(endpoint.url, str(answer["status"]["token"]), endpoint.certificate).write_kubeconfig(path)
    return path


async def _delete(api: Api, path: str) -> None:
    with suppress(NotFound):
        found = await api.get(path)
        await api.delete(path, found["metadata"]["uid"])


def variables(thing: Any) -> set[str]:
    """Returns the names of all environment variables in an object."""
    if isinstance(thing, dict):
        env = thing.get("env") or ()
        own = set(env) if isinstance(env, dict) else {one["name"] for one in env}
        return own.union(*(variables(value) for value in thing.values()))
    return set().union(*map(variables, thing)) if isinstance(thing, list) else set()
