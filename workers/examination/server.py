"""API server and the kinds of jobs that it serves."""

from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from activities.clusters.api_server import Api, Object, check_version
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import KINDS
from rekindle.errors import BadInput, ClusterError, Forbidden
from rekindle.model.compatibility import API_SERVER
from rekindle.model.examined import Link, failed, ok, warning
from workers.examination.installation import Installation, asked, found

NAME = "Kubernetes"

DEFINITIONS = Path(__file__).parents[2] / "deploy" / "crds"

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

INSTALL = "upgrade the chart rekindle-crds to this release, or apply its definitions: kubectl apply --server-side -k deploy/crds"


async def reached(api: Api) -> Link:
    """Examines whether the API server answers, and whether its version fits."""
    try:
        address = await api.address()
    except (BadInput, ClusterError) as error:
        return failed(NAME, str(error), "look at the kubeconfig, or name another one with --kubeconfig")
    try:
        version = await check_version(api)
    except BadInput as error:
        return failed(NAME, str(error), "upgrade the cluster, or name another one with --kubeconfig")
    except Forbidden as error:
        return failed(NAME, f"the API server refuses our identity: {error}", "renew the credentials of the kubeconfig")
    except ClusterError as error:
        return failed(NAME, f"the API server does not answer at {address}: {error}", "look at the cluster, and at the kubeconfig")
    return ok(NAME, f"version {version} answers at {address}, accepted are {API_SERVER.accepted}")


async def kinds(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the definition of our kind, and the versions of all kinds."""
    for kind in KINDS:
        if kind.is_ours:
            yield await asked(f"definition of {kind.name}", _definition(installation, kind))
    yield await asked("kinds of jobs", _served_kinds(installation))


async def _definition(installation: Installation, kind: Kind) -> Link:
    name, version = f"definition of {kind.name}", kind.api_version.rpartition("/")[2]
    if not await _is_served(installation.api, kind):
        served = await _versions(installation.api, kind)
        words = f"served are {', '.join(served)}" if served else "it is not installed"
        return failed(name, f"version {version} is not served: {words}", INSTALL)
    try:
        there = await installation.api.get(f"{PATH}/{kind.plural}.{kind.group}")
    except Forbidden:
        return ok(name, f"version {version} is served")
    shipped = yaml.safe_load((DEFINITIONS / f"{kind.plural}.{kind.group}.yaml").read_text())
    if _schema(there, version) == _schema(shipped, version):
        return ok(name, f"version {version} is served, as this release has it")
    return warning(name, f"version {version} is served as another release has it: newer fields are dropped", INSTALL)


def _schema(definition: Object, version: str) -> object:
    return next((one.get("schema") for one in definition["spec"]["versions"] if one["name"] == version), None)


async def _served_kinds(installation: Installation) -> Link:
    served, other, away = [], [], []
    for kind in KINDS:
        if await _is_served(installation.api, kind):
            served.append(kind.name)
        elif versions := await _versions(installation.api, kind):
            other.append(f"{kind.name} is served as {', '.join(versions)}, accepted is {kind.api_version}")
        else:
            away.append(kind.name)
    words = f"served are {', '.join(served)}" + (f"; not installed: {', '.join(away)}" if away else "")
    if other:
        return warning("kinds of jobs", f"{'; '.join(other)}: its jobs are not seen", "install its controller in that version")
    return ok("kinds of jobs", words)


async def _is_served(api: Api, kind: Kind) -> bool:
    return await _has(api, kind.api, kind.plural)


async def _has(api: Api, path: str, plural: str) -> bool:
    listed = await found(api.get(path))
    return listed is not None and any(one["name"] == plural for one in listed.get("resources") or ())


async def _versions(api: Api, kind: Kind) -> list[str]:
    """Returns the other versions of the kind's group in which the kind is served."""
    group = await found(api.get(kind.api.rpartition("/")[0]))
    versions = [one["groupVersion"] for one in (group or {}).get("versions") or ()]
    return [one for one in versions if await _has(api, f"/apis/{one}", kind.plural)]
