"""Writes the tokens that a pod's volumes project, as a kubelet does: requested for the pod, and replaced before they expire.

Used by `kubelet.py`. Pods are processes of this machine and have no mounts. Where their environment names a file below a mount,
it names one in a directory of the pod instead. Only tokens for a named audience are written, not the one for the API server,
which nothing here reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from activities.clusters.api_server import Api, Object

REPLACED_AFTER = 0.8
"""Fraction of a token's lifetime after which it is replaced. Source: kubelet."""


@dataclass(frozen=True)
class Projection:
    """Projected token of a pod."""

    mount: str
    directory: Path
    path: str
    audience: str
    seconds: int


def projections(pod: Object, directory: Path) -> list[Projection]:
    """Returns the tokens that are mounted into the pod's container."""
    mounts = {one["name"]: one["mountPath"].rstrip("/") for one in pod["spec"]["containers"][0].get("volumeMounts", ())}
    sources = [
        (volume["name"], source["serviceAccountToken"])
        for volume in pod["spec"].get("volumes", ())
        for source in volume.get("projected", {}).get("sources", ())
        if source.get("serviceAccountToken", {}).get("audience")
    ]
    return [
        Projection(mounts[name], directory / name, token["path"], token["audience"], int(token.get("expirationSeconds") or 3600))
        for name, token in sources
        if name in mounts
    ]


async def write(api: Api, pod: Object, one: Projection) -> None:
    """Requests a new token and writes it atomically: readers see the old or the new one."""
    metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
    reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    spec = {"audiences": [one.audience], "expirationSeconds": one.seconds, "boundObjectRef": reference}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    token = str((await api.create(path, body))["status"]["token"])
    one.directory.mkdir(parents=True, exist_ok=True)
    new = one.directory / f".{one.path}"
    new.write_text(token)
    new.chmod(0o600)
    new.replace(one.directory / one.path)


def as_mounted(environment: Mapping[str, str], found: list[Projection]) -> dict[str, str]:
    """Returns the environment with directories in place of mounts."""
    said = dict(environment)
    for one in found:
        beneath = f"{one.mount}/"
        said = {
            name: str(one.directory / value.removeprefix(beneath)) if value.startswith(beneath) else value
            for name, value in said.items()
        }
    return said
