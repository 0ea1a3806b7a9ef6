"""Real Kubernetes for tests: API server, scheduler and controllers, with kubelets that run pods as processes."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from activities.clusters.api_server import Api, Object
from rekindle.errors import Conflict, NotFound
from simulators.kubernetes.servers import Endpoint
from tests.support.cluster import environment

WAIT_LIMIT = 60.0
ACCELERATOR = "huawei.com/Ascend910"


@contextmanager
def local_kubernetes(state_dir: Path) -> Iterator[Path]:
    """Runs a Kubernetes and yields the administrator's kubeconfig. The first one of a machine builds the programs, which takes
    minutes. It behaves as the oldest version that it can emulate, so that tests do not rely on newer features; the demonstration
    uses the newest."""
    command = [sys.executable, "-P", "-m", "simulators.kubernetes", f"--state-dir={state_dir}", "--oldest"]
    with (state_dir / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log)
    with process:
        assert process.stdout is not None
        line = next((line for line in map(bytes.decode, process.stdout) if line.startswith("ready")), "")
        assert line.startswith("ready kubernetes "), (state_dir / "log").read_text()
        try:
            yield Path(line.removeprefix("ready kubernetes ").strip())
        finally:
            process.terminate()


def endpoint_of(kubeconfig: Path) -> Endpoint:
    """Returns the administrator's endpoint, for another installation: tests of the manifests uninstall the first one."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    return Endpoint(cluster["server"], config["users"][0]["user"]["token"], Path(cluster["certificate-authority"]))


class Namespace:
    """Namespace of one test, with short methods for what tests do in it."""

    def __init__(self, api: Api, name: str) -> None:
        self.api, self.name = api, name

    def path(self, kind: str, name: str = "") -> str:
        return f"{GROUPS.get(kind, '/api/v1')}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    async def pod(self, name: str, *command: str, node: str = "", accelerators: int = 0, **spec: Any) -> Object:
        """Creates a pod of one container, whose further fields are in `container`."""
        container: Object = {"name": "main", "image": "none", "command": list(command), "env": spec.pop("env", [])}
        container |= spec.pop("container", {})
        if accelerators:
            container["resources"] = {"limits": {ACCELERATOR: str(accelerators)}}
        body = {
            "metadata": {"name": name, "annotations": {"hccl/rankIndex": "3"}},
            "spec": {"containers": [container], "restartPolicy": "Never", **({"nodeName": node} if node else {}), **spec},
        }
        return await self.api.create(self.path("pods"), body)

    async def until(self, kind: str, name: str, condition: Callable[[Object], bool]) -> Object:
        """Returns the object, as soon as it satisfies a condition."""
        path = self.path(kind) if kind != "nodes" else "/api/v1/nodes"
        async with asyncio.timeout(WAIT_LIMIT):
            selector = f"metadata.name={name}"
            listing = await self.api.list(path, fieldSelector=selector)
            for item in listing.items:
                if condition(item):
                    return item
            async for change in self.api.watch(path, listing.resource_version, fieldSelector=selector):
                if change.type in ("ADDED", "MODIFIED") and condition(change.object):
                    return change.object
        raise AssertionError("a watch has no end")

    async def until_phase(self, name: str, phase: str) -> Object:
        return await self.until("pods", name, lambda pod: pod["status"].get("phase") == phase)

    async def until_gone(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        path = self.path("pods")
        async with asyncio.timeout(WAIT_LIMIT):
            listing = await self.api.list(path, fieldSelector=f"metadata.name={name}")
            if uid not in {item["metadata"]["uid"] for item in listing.items}:
                return
            async for change in self.api.watch(path, listing.resource_version, fieldSelector=f"metadata.name={name}"):
                if change.type == "DELETED" and change.object["metadata"]["uid"] == uid:
                    return

    async def until_event(self, reason: str) -> Object:
        """Waits for an event with this reason, and returns the first one."""
        path = self.path("events")
        async with asyncio.timeout(WAIT_LIMIT):
            listing = await self.api.list(path)
            for item in listing.items:
                if item["reason"] == reason:
                    return item
            async for change in self.api.watch(path, listing.resource_version):
                if change.object["reason"] == reason:
                    return change.object
        raise AssertionError("a watch has no end")

    async def kubeconfig_of(self, account: str, administrator: Path, directory: Path) -> Path:
        """Creates a service account without rights, and returns the path of its kubeconfig."""
        config = yaml.safe_load(administrator.read_text())
        config["users"][0]["user"] = {"token": await self.token_of(account)}
        (directory / account).write_text(yaml.safe_dump(config))
        return directory / account

    async def token_of(self, account: str) -> str:
        """Creates a service account without rights, and returns a token for it."""
        await self.api.create(self.path("serviceaccounts"), {"metadata": {"name": account}})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        answer = await self.api.create(self.path("serviceaccounts", f"{account}/token"), request)
        return str(answer["status"]["token"])


RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUPS = {
    "jobs": "/apis/batch/v1",
    "roles": RBAC,
    "rolebindings": RBAC,
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "trainingjobs": "/apis/rekindle.io/v1",
    "ascendjobs": "/apis/mindxdl.gitee.com/v1",
    "podgroups": "/apis/scheduling.volcano.sh/v1beta1",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "pytorchjobs": "/apis/kubeflow.org/v1",
    "trainjobs": "/apis/trainer.kubeflow.org/v1alpha1",
    "trainingruntimes": "/apis/trainer.kubeflow.org/v1alpha1",
    "localqueues": "/apis/kueue.x-k8s.io/v1beta2",
    "workloads": "/apis/kueue.x-k8s.io/v1beta2",
}


@asynccontextmanager
async def a_namespace(kubeconfig: Path, name: str) -> AsyncIterator[Namespace]:
    """Creates a namespace and deletes it with everything in it. Waits until its pods are gone, as the next test needs their
    nodes."""
    async with Api(kubeconfig) as api:
        created = await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            yield Namespace(api, name)
        finally:
            # First, so that no controller recreates a pod: a pod created during the deletion would hold its node for a while.
            await api.delete(f"/api/v1/namespaces/{name}", created["metadata"]["uid"])
            await _until_empty(api, f"/api/v1/namespaces/{name}/pods")


async def _until_empty(api: Api, path: str) -> None:
    async with asyncio.timeout(WAIT_LIMIT):
        while pods := (await api.list(path)).items:
            for pod in pods:
                with suppress(NotFound, Conflict):
                    await api.delete(f"{path}/{pod['metadata']['name']}", pod["metadata"]["uid"], 0)
            await asyncio.sleep(0.05)
