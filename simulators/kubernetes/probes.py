"""Plays a kubelet's readiness probes: by HTTP, gRPC or a connection. Used by `kubelet.py`; a probe by a command always passes."""

import asyncio
from typing import Any

import aiohttp
import grpc

from activities.clusters.api_server import Object
from simulators.kubernetes.network import port_of

PERIOD, LIMIT, FAILURES = 10.0, 1.0, 3
"""Seconds between two probes, seconds for one, and failures after which a pod is not ready: defaults of Kubernetes."""

STARTING = 1.0
"""Seconds between two probes of a container that starts: the period of our startup probes."""

CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
"""Answer of the health service: its first field has the value 1."""


async def passes(probe: Object, pod: Object, address: str) -> bool:
    """Returns whether a pod at an address passes a probe."""
    try:
        async with asyncio.timeout(probe.get("timeoutSeconds", LIMIT)):
            return await _passes(probe, pod, address)
    except (OSError, TimeoutError, aiohttp.ClientError, grpc.aio.AioRpcError):
        return False


async def _passes(probe: Object, pod: Object, address: str) -> bool:
    if http := probe.get("httpGet"):
        url = f"{http.get('scheme', 'HTTP').lower()}://{address}:{port_of(pod, http['port'])}{http.get('path', '/')}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
            return 200 <= answer.status < 400
    if service := probe.get("grpc"):
        async with grpc.aio.insecure_channel(f"{address}:{service['port']}") as channel:
            check: Any = channel.unary_unary(CHECK)
            return bool(await check(b"") == SERVING)
    if socket := probe.get("tcpSocket"):
        _, writer = await asyncio.open_connection(address, port_of(pod, socket["port"]))
        writer.close()
    return True
