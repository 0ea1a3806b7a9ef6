"""All objects of a cluster, to compare what is there before an installation and after its removal."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from activities.clusters.api_server import Api, Object
from rekindle.errors import NotFound

Key = tuple[str, str, str]
"""Resource with its group, namespace and name of an object."""

LEFT_OUT = {"events", "events.events.k8s.io", "componentstatuses"}
"""Events go when their time is over. States of components are no stored objects."""

PATIENCE = 60.0


async def all_objects(api: Api) -> dict[Key, Object]:
    """Returns what parties write on each object of the cluster: its labels, annotations, finalizers and owners, and the cordon of
    a node."""
    found: dict[Key, Object] = {}
    async for path, resource in _resources(api):
        try:
            items = (await api.list(path)).items
        except NotFound:  # its definition has just gone
            continue
        for one in items:
            metadata, spec = one["metadata"], one.get("spec")
            kept = {key: metadata.get(key) for key in ("labels", "annotations", "finalizers", "ownerReferences")}
            cordon = spec.get("unschedulable") if isinstance(spec, dict) else None
            found[resource, metadata.get("namespace", ""), metadata["name"]] = {**kept, "unschedulable": cordon}
    return found


async def _resources(api: Api) -> AsyncIterator[tuple[str, str]]:
    """Yields path and name of each resource that can be listed."""
    groups = (await api.get("/apis"))["groups"]
    versions = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    for version in versions:
        try:
            served = await api.get(version)
        except NotFound:
            continue
        group = version.removeprefix("/apis/").rpartition("/")[0] if version != "/api/v1" else ""
        for one in served["resources"]:
            resource = ".".join(filter(None, (one["name"], group)))
            if "list" in one["verbs"] and "/" not in one["name"] and resource not in LEFT_OUT:
                yield f"{version}/{one['name']}", resource


def difference(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> dict[str, set[Key]]:
    """Returns the objects that are new, missing, and changed."""
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    found = {"new": after.keys() - before.keys(), "missing": before.keys() - after.keys(), "changed": changed}
    return {word: set(keys) for word, keys in found.items() if keys}


async def difference_when_settled(api: Api, before: Mapping[Key, Any]) -> dict[str, set[Key]]:
    """Returns the difference as soon as there is none, or after a minute. Controllers remove what has lost its owner."""
    try:
        async with asyncio.timeout(PATIENCE):
            while difference(before, await all_objects(api)):
                await asyncio.sleep(0.5)
    except TimeoutError:
        return difference(before, await all_objects(api))
    return {}
