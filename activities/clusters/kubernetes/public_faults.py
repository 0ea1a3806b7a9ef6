"""Stores public faults that were reported to the gateway: one ConfigMap each in `cluster-system`, which the watch reads like
those of others.

The faults thus survive a restart of our processes, and are found again before any action on a node. Used by the gateway.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.reader import in_scope
from rekindle.errors import MALFORMED, BadInput, ClusterUnavailable, Conflict, NotFound
from rekindle.model.public_fault import MOST_INFLUENCES, Envelope, PublicFault
from rekindle.policy.detection.public_faults import Concerned, Concerns, is_shown, told

NAMESPACE = "cluster-system"
CONSUMED = {"mc-consumer-publicfault": "true"}
"""Label of the contract, which every reader of public faults selects."""

OURS = {"app.kubernetes.io/managed-by": "rekindle-gateway"}
KEY = "PublicFault"

MOST = 5_000
"""Maximum number of faults at a time."""

SWEEP = 60.0
"""Seconds between two sweeps of expired faults."""

MOST_SWEPT = 200
"""Maximum number of ConfigMaps that one sweep deletes. A fault that is being reported waits for the sweep."""

TRIES = 5
"""Tries of a change that conflicts with the change of another gateway."""


class PublicFaults:
    def __init__(self, api: Api, clock: Callable[[], float] = time.time) -> None:
        self._api, self._path, self._clock = api, in_scope("configmaps", NAMESPACE), clock
        self._changing = asyncio.Lock()
        self._swept = float("-inf")
        self._count = 0

    async def tell(self, envelope: Envelope, fault: PublicFault) -> None:
        """Stores a fault, or updates one that is stored.

        Raises:
            BadInput: too many faults are stored. ClusterError: it was not stored; the report may be repeated.
        """
        async with self._changing:
            await self._sweep()
            for _ in range(TRIES):
                try:
                    await self._change(envelope, fault)
                except (Conflict, NotFound):
                    continue
                return
        raise ClusterUnavailable(f"public fault {fault.fault_id}: others change it all the time")

    async def _change(self, envelope: Envelope, fault: PublicFault) -> None:
        name, now = _name(envelope.resource, fault.fault_id), int(1000 * self._clock())
        try:
            thing = await self._api.get(f"{self._path}/{name}")
        except NotFound:
            await self._create(name, _said(envelope, fault), told({}, fault, now))
            return
        known = concerns(thing)
        found = told(known, fault, now)
        if found == known:
            return
        if len(found) > MOST_INFLUENCES:
            raise BadInput(f"influence: fault {fault.fault_id} concerns {len(found)} nodes, accepted are {MOST_INFLUENCES}")
        said = json.loads(thing["data"][KEY]) if is_shown(known, now) else _said(envelope, fault)  # as it was reported first
        metadata = {"resourceVersion": thing["metadata"]["resourceVersion"]}
        await self._api.patch(f"{self._path}/{name}", {"metadata": metadata, "data": {KEY: _written(said, found)}})

    async def _create(self, name: str, said: Mapping[str, Any], found: Concerns) -> None:
        if self._count >= MOST:
            raise BadInput(f"faults: {self._count} public faults stand already: first tell that some are over")
        body = {"metadata": {"name": name, "labels": {**CONSUMED, **OURS}}, "data": {KEY: _written(said, found)}}
        await self._api.create(self._path, body)
        self._count += 1

    async def _sweep(self) -> None:
        """Deletes faults that are over for every node, and counts the rest."""
        if time.monotonic() < self._swept + SWEEP:
            return
        listed = await self._api.list(self._path, labelSelector=",".join(f"{key}={value}" for key, value in OURS.items()))
        now = int(1000 * self._clock())
        over = [one for one in listed.items if all(at.is_over(now) for at in concerns(one).values())][:MOST_SWEPT]
        for one in over:
            try:
                metadata = one["metadata"]
                await self._api.delete(f"{self._path}/{metadata['name']}", metadata["uid"], version=metadata["resourceVersion"])
            except (Conflict, NotFound):
                continue
        self._count, self._swept = len(listed.items) - len(over), time.monotonic()
        if self._count >= MOST and over:
            self._swept = float("-inf")


def concerns(thing: Object) -> Concerns:
    """Returns the nodes and devices that a ConfigMap lists; empty if its content is invalid because another party wrote it."""
    try:
        (fault,) = json.loads(thing["data"][KEY])["faults"]
        return {one["node"]: Concerned.model_validate(one) for one in fault["concerned"]}
    except (*MALFORMED, BadInput):
        return {}


def _name(sender: str, fault_id: str) -> str:
    digest = hashlib.sha256(f"{sender}/{fault_id}".encode()).hexdigest()
    return f"rekindle-public-fault-{digest[:24]}"


def _said(envelope: Envelope, fault: PublicFault) -> Mapping[str, Any]:
    """Returns the fault in the format of the contract's ConfigMap."""
    known = fault.model_dump(by_alias=True, exclude={"influence"})
    return {**envelope.model_dump(by_alias=True), "faults": [{**known, "assertion": "occur"}]}


def _written(said: Mapping[str, Any], found: Concerns) -> str:
    """Returns the JSON of a fault, with our own list of affected nodes added."""
    concerned: list[Mapping[str, Any]] = [{"node": node, **one.model_dump()} for node, one in sorted(found.items())]
    (fault,) = said["faults"]
    return json.dumps({**said, "faults": [{**fault, "concerned": concerned}]})
