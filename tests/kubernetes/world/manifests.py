"""Manifests of `deploy`, as kustomize renders them, and the environment that their containers read."""

import os
import re
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Object
from rekindle.settings import Settings
from workers.other_controller import PART_OF

ROOT = Path(__file__).parents[3]


PAGES = [ROOT / "docs" / f"{name}.md" for name in ("kustomize", "take-over", "kubernetes-jobs", "kubernetes-security")]
"""Pages with examples of objects."""


OVERLAYS = sorted(path.parent.name for path in (ROOT / "deploy" / "overlays").glob("*/kustomization.yaml"))


WRITTEN_BY_HAND = {
    "mtls/tls.crt": "certificate",
    "mtls/tls.key": "key",
    "mtls/ca.crt": "authority",
    "api-key/temporal.env": "TEMPORAL_API_KEY=a-key",
}


PROCESSES = ("control", "gateway", "watcher", "operator")


OURS = {PART_OF: "rekindle"}


every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def rendered(program: str, overlay: Path) -> list[Object]:
    done = subprocess.run([program, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def workloads(objects: list[Object]) -> list[Object]:
    found = of_kind(objects, "Deployment", "StatefulSet")
    assert {one["metadata"]["name"] for one in found} == {f"rekindle-{name}" for name in PROCESSES}
    return found


def template(one: Object) -> Object:
    found: Object = one["spec"]["template"]
    return found


def container(one: Object) -> Object:
    found: list[Object] = template(one)["spec"]["containers"]
    return found[0]


def chooses(selector: dict[str, str], one: Object) -> bool:
    labels: dict[str, str] = template(one)["metadata"]["labels"]
    return selector.items() <= labels.items()


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def environment(objects: list[Object], one: Object) -> dict[str, str]:
    """Returns the environment that a kubelet would give to the container, without that of the image."""
    found: dict[str, str] = {}
    for source in container(one)["envFrom"]:
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container(one).get("env", []):
        found[variable["name"]] = variable.get("value") or _from(objects, one, variable["valueFrom"])
    return found


def _from(objects: list[Object], one: Object, source: Object) -> str:
    """Returns the value of a variable that a field of the pod or a key of a Secret gives."""
    if reference := source.get("secretKeyRef"):
        return b64decode(named(objects, "Secret", reference["name"])["data"][reference["key"]]).decode()
    fields = {
        "metadata.name": f"{one['metadata']['name']}-0",
        "status.podIP": "10.0.0.7",
        "metadata.labels['pod-template-hash']": "5d9c7b",
    }
    return fields[source["fieldRef"]["fieldPath"]]


def settings(objects: list[Object], one: Object, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Returns the settings that the process of a container reads."""
    for name in [name for name in os.environ if name.startswith("REKINDLE_")]:
        monkeypatch.delenv(name)
    for name, value in environment(objects, one).items():
        monkeypatch.setenv(name, value)
    return Settings()


def on_the_page(kind: str) -> str:
    """Returns the example of an object on the documentation pages."""
    pages = "".join(page.read_text() for page in PAGES)
    (written,) = [text for text in re.findall(r"```yaml\n(apiVersion:.*?)```", pages, re.DOTALL) if f"kind: {kind}" in text]
    return str(written)
