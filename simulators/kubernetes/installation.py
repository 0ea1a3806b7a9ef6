"""Applies what an administrator installs before Rekindle runs: custom kinds, namespace, accounts, their rights, marks, priority.

Each process gets a kubeconfig of its own account, so that missing rights are noticed here too.
"""

import asyncio
from pathlib import Path

import yaml

from activities.clusters.api_server import Api, Object
from rekindle.errors import Conflict, NotFound
from simulators.kubernetes.servers import Endpoint

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "mindx-dl"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}

TOKEN_SECONDS = 24 * 3600


def kubeconfig_of(process: str, directory: Path) -> Path:
    """Returns the path of the kubeconfig for the account of `control`, `gateway`, `watcher` or `operator`."""
    return directory / f"kubeconfig-{process}"


async def install(api: Api, endpoint: Endpoint, directory: Path) -> None:
    """Applies the manifests and writes a kubeconfig for each account. A repeated call changes nothing."""
    definitions = sorted((DEPLOY / "crds").glob("*.rekindle.io.yaml"))
    for file in (
        *definitions,
        *(DEPLOY / "base" / name for name in ("namespace.yaml", "rbac.yaml", "marks.yaml", "priority.yaml")),
    ):
        for thing in yaml.safe_load_all(file.read_text()):
            await _apply(api, thing)
            if thing["kind"] == "ServiceAccount":
                name = thing["metadata"]["name"]
                path = kubeconfig_of(name.removeprefix("rekindle-"), directory)
                await write_kubeconfig(api, endpoint, f"{PATHS['ServiceAccount']}/{name}", path)
    for file in definitions:
        await _until_served(api, yaml.safe_load(file.read_text()))


async def _apply(api: Api, thing: Object) -> None:
    try:
        await api.create(PATHS[thing["kind"]], thing)
    except Conflict:
        return


async def write_kubeconfig(api: Api, endpoint: Endpoint, account: str, path: Path) -> None:
    """Writes a kubeconfig for a service account.

    Args:
        account: path of the account on the API server.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    answer = await api.create(f"{account}/token", body)
    own = Endpoint(endpoint.url, str(answer["status"]["token"]), endpoint.certificate)
    own.write_kubeconfig(path)


async def _until_served(api: Api, definition: Object) -> None:
    spec = definition["spec"]
    while True:
        try:
            await api.list(f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}")
        except NotFound:
            await asyncio.sleep(0.05)  # the API server takes a moment to serve a new kind
        else:
            return
