"""Makes the environment of a pod's process: what its container says, the account of its pod, and the code of its image.

Used by `kubelet.py`. An image is no file here. Its folder in `images`, if there is one, contains Python packages that come before
those of this installation, such as a changed `workflows`: so an upgrade runs other code.
"""

import base64
import os
import sys
from pathlib import Path

from activities.clusters.api_server import Api, Object
from rekindle.errors import NotFound
from simulators.kubernetes.installation import write_kubeconfig
from simulators.kubernetes.network import LOOPBACK, Network
from simulators.kubernetes.servers import Endpoint

IMAGES = "images"

DEFAULT_ACCOUNT = "default"
"""Account of pods that name none. Such a pod asks the API server for nothing."""


class Containers:
    """Environments of the pods of one cluster."""

    def __init__(self, api: Api, endpoint: Endpoint, directory: Path, network: Network) -> None:
        """Args:
        directory: contains a folder for each pod, and lies beside the images.
        """
        self._api, self._endpoint, self._directory, self._network = api, endpoint, directory, network

    async def environment(self, pod: Object) -> dict[str, str]:
        """Returns the environment of a pod's first container. What the container says itself comes before everything else.

        Raises:
            NotFound: a ConfigMap or a Secret that it names is missing.
        """
        container = pod["spec"]["containers"][0]
        said: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            said |= await self._source(pod["metadata"]["namespace"], source)
        said |= {entry["name"]: self._value(pod, entry) for entry in container.get("env", ())}
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        here = {**os.environ, "PATH": search, **self._code(container["image"]), **self._alone(pod), **await self._account(pod)}
        return {**here, **await self._network.resolved(said)}

    async def _source(self, namespace: str, source: Object) -> dict[str, str]:
        """Returns all entries of a ConfigMap or a Secret."""
        reference = source.get("configMapRef") or source["secretRef"]
        kind = "configmaps" if "configMapRef" in source else "secrets"
        try:
            found = await self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{reference['name']}")
        except NotFound:
            if reference.get("optional"):
                return {}
            raise
        data: dict[str, str] = found.get("data") or {}
        read = data if kind == "configmaps" else {name: base64.b64decode(text).decode() for name, text in data.items()}
        return {f"{source.get('prefix', '')}{name}": value for name, value in read.items()}

    def _value(self, pod: Object, entry: Object) -> str:
        """Returns the value of an environment entry: a literal, or a field of the pod as in the downward API."""
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if not path:
            return str(entry.get("value", ""))
        for group in ("annotations", "labels"):
            if path.startswith(f"metadata.{group}['"):
                return str(pod["metadata"].get(group, {}).get(path.partition("'")[2].rpartition("'")[0], ""))
        if path in ("status.podIP", "status.hostIP"):
            return self._network.address_of(pod) if path == "status.podIP" else LOOPBACK
        value: object = pod
        for part in path.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        return str(value)

    def _code(self, image: str) -> dict[str, str]:
        folder = self._directory.parent / IMAGES / folder_of(image)
        if not folder.is_dir():
            return {}
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}

    def _alone(self, pod: Object) -> dict[str, str]:
        """Returns the variable by which a process of ours listens on its pod's address only, as others use the port too."""
        address = self._network.address_of(pod)
        return {} if address == LOOPBACK else {"REKINDLE_HEALTH_HOST": address}

    async def _account(self, pod: Object) -> dict[str, str]:
        """Writes a kubeconfig for the pod's account, in place of the files that a kubelet mounts."""
        account = account_of(pod)
        if account == DEFAULT_ACCOUNT:
            return {}
        folder = self._directory / pod["metadata"]["uid"]
        folder.mkdir(parents=True, exist_ok=True)
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/serviceaccounts/{account}"
        await write_kubeconfig(self._api, self._endpoint, path, folder / "kubeconfig")
        return {"REKINDLE_KUBECONFIG": str(folder / "kubeconfig")}


def folder_of(image: str) -> str:
    """Returns the name of the folder with an image's packages. A colon would end an entry of a search path."""
    return image.replace("/", "_").replace(":", "_")


def account_of(pod: Object) -> str:
    """Returns the name of the pod's service account."""
    return str(pod["spec"].get("serviceAccountName") or DEFAULT_ACCOUNT)
