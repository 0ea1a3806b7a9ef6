"""Manifests of `examples/kubernetes`, adapted to the simulated kubelets: no names, volumes and images, one address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from activities.clusters.api_server import Object
from tests.kubernetes.world.control_plane import ACCELERATOR, Namespace

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"
STEPS, CHECKPOINT_EVERY = 40, 5


@dataclass(frozen=True)
class Here:
    """Differences from the cluster that the manifest is for."""

    gateway: str
    port: int
    """Port at which the job's manager listens, at the one address of all pods."""

    folder: Path
    """Folder that all pods share."""


def documents(kind: str) -> list[Object]:
    """Returns the objects of a manifest unchanged."""
    return list(yaml.safe_load_all((FOLDER / f"{kind.lower()}.yaml").read_text()))


def plural_of(document: Object) -> str:
    return f"{document['kind'].lower()}s"


async def apply(namespace: Namespace, found: Sequence[Object]) -> Object:
    """Creates the objects, and returns the last one, which is the job."""
    made: Object = {}
    for document in found:
        made = await namespace.api.create(namespace.path(plural_of(document)), document)
    return made


def adapted(part: Any, here: Here) -> Any:
    """Returns the objects adapted to this cluster."""
    if isinstance(part, list):
        return [adapted(one, here) for one in part]
    if not isinstance(part, Mapping):
        return part
    changed = {key: adapted(value, here) for key, value in part.items() if key != "schedulerName"}
    if "containers" in changed:
        changed["terminationGracePeriodSeconds"] = 1
        changed["volumes"] = [one for one in changed.get("volumes", ()) if "persistentVolumeClaim" not in one]
    if "nvidia.com/gpu" in changed:
        changed = {ACCELERATOR: changed["nvidia.com/gpu"]}
    if "command" in changed:
        changed["command"] = _command(changed["command"], here)
    if "env" in changed:
        changed["env"] = _environment(changed["env"], here)
        changed["volumeMounts"] = [one for one in changed["volumeMounts"] if one["name"] != "shared"]
    return changed


def _command(said: Sequence[str], here: Here) -> list[str]:
    changed = {"--steps": STEPS, "--checkpoint-every": CHECKPOINT_EVERY}
    found = [f"{flag}={changed[flag]}" if (flag := one.partition("=")[0]) in changed else one for one in said]
    if "rekindle-train" not in found:
        return found
    assert sum(one.startswith("--master-addr=gpt-manager") for one in found) == 1
    addressed = ["--master-addr=127.0.0.1" if one.startswith("--master-addr=") else one for one in found]
    return [addressed[0], f"--master-port={here.port}", *addressed[1:], "--step-ms=60", f"--step-ms-file={here.folder}/pace"]


def _environment(said: Sequence[Object], here: Here) -> list[Object]:
    host, port = here.gateway.rsplit(":", 1)
    instead = {"MINDX_SERVER_IP": host, "REKINDLE_JOB_DIR": str(here.folder), "MASTER_PORT": str(here.port)}
    added = {"REKINDLE_GATEWAY_PORT": port, "REKINDLE_TOKEN_FILE": "/var/run/secrets/rekindle.io/token"}
    changed = [{"name": one["name"], "value": instead[one["name"]]} if one["name"] in instead else one for one in said]
    return [*changed, *({"name": name, "value": value} for name, value in added.items())]
