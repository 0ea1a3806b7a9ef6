"""Plays the network of pods and Services: addresses of this machine, names, and connections to the pods of a Service.

Used by `kubelet.py`. Pods are processes of this machine and have no network of their own. A pod whose container has ports gets an
address of the machine's loopback network, so that several such pods listen on the same port. There is no DNS: where a pod's
environment names a Service, it has an address instead, at which this process accepts connections for the Service.
"""

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address

from activities.clusters.api_server import Api, Object
from rekindle.errors import NotFound

LOOPBACK = "127.0.0.1"

FIRST = int(IPv4Address("127.64.0.0"))
ADDRESSES = 2**22
"""Number of addresses from the first one on. Each cluster of this machine begins at a random one."""

NAME = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?=:|$)")
"""Name of a Service in the cluster's DNS, at the beginning of a value."""

PIECE = 65_536


class Network:
    """Network of one cluster."""

    def __init__(self, api: Api, pods: Callable[[], Iterable[Object]]) -> None:
        """Args:
        pods: returns the last seen state of all pods.
        """
        self._api, self._pods = api, pods
        self._free = itertools.count(FIRST + random.randrange(ADDRESSES // 2))
        self._addresses: dict[str, str] = {}
        """Addresses of pods and of Services, by UID."""
        self._servers: list[asyncio.Server] = []
        self._resolving = asyncio.Lock()

    def address_of(self, pod: Object) -> str:
        """Returns the address of a pod: its own if its container has ports, and otherwise that of this machine."""
        return self._own(pod["metadata"]["uid"]) if pod["spec"]["containers"][0].get("ports") else LOOPBACK

    async def resolved(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment with addresses in place of the names of Services."""
        return {name: await self._resolved(value) if NAME.match(value) else value for name, value in environment.items()}

    def close(self) -> None:
        """Stops accepting connections."""
        for server in self._servers:
            server.close()

    def _own(self, uid: str) -> str:
        if uid not in self._addresses:
            self._addresses[uid] = str(IPv4Address(next(self._free)))
        return self._addresses[uid]

    # ---- Services

    async def _resolved(self, value: str) -> str:
        found = NAME.match(value)
        assert found, "the caller has looked"
        name, namespace = found.groups()
        async with self._resolving:
            try:
                service = await self._api.get(f"/api/v1/namespaces/{namespace}/services/{name}")
            except NotFound:
                return value
            return await self._address_of_service(service) + value[found.end() :]

    async def _address_of_service(self, service: Object) -> str:
        """Returns the address at which connections to a Service are accepted. Pods of a headless one are on this machine."""
        uid = service["metadata"]["uid"]
        if service["spec"].get("clusterIP") == "None":
            return LOOPBACK
        if uid not in self._addresses:
            address = self._own(uid)
            for port in service["spec"].get("ports", ()):
                relay = _Relay(self, service, port)
                self._servers.append(await asyncio.start_server(relay.serve, address, port["port"]))
        return self._addresses[uid]

    def ready_pods(self, service: Object) -> list[Object]:
        """Returns the ready pods that a Service selects, in a random order."""
        namespace, selector = service["metadata"]["namespace"], service["spec"].get("selector") or {}
        found = [
            pod
            for pod in self._pods()
            if pod["metadata"]["namespace"] == namespace
            and selector.items() <= pod["metadata"].get("labels", {}).items()
            and is_ready(pod)
            and not pod["metadata"].get("deletionTimestamp")
        ]
        return random.sample(found, len(found))


class _Relay:
    """Connections to one port of a Service."""

    def __init__(self, network: Network, service: Object, port: Object) -> None:
        self._network, self._service, self._port = network, service, port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connects a client with a ready pod, until one of them closes the connection."""
        for pod in self._network.ready_pods(self._service):
            port = port_of(pod, self._port.get("targetPort") or self._port["port"])
            with contextlib.suppress(OSError):
                upstream = await asyncio.open_connection(self._network.address_of(pod), port)
                await _joined((reader, writer), upstream)
                return
        writer.close()


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _joined(one: Ends, other: Ends) -> None:
    tasks = [asyncio.create_task(_copy(one[0], other[1])), asyncio.create_task(_copy(other[0], one[1]))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for _, writer in (one, other):
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()


def port_of(pod: Object, port: int | str) -> int:
    """Returns the number of a port of the pod's container, which may be given by its name."""
    ports = pod["spec"]["containers"][0].get("ports", ())
    return next((int(one["containerPort"]) for one in ports if one.get("name") == port), 0) or int(port)


def is_ready(thing: Object) -> bool:
    """Returns whether a node or a pod has the condition Ready with status True."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in thing["status"].get("conditions", ()))
