"""Which addresses may ask for operations on jobs and tell of faults of nodes: those of platforms that the installation names."""

import ipaddress

import grpc

from rekindle.settings import Settings
from workers.gateway.desk import Context
from workers.gateway.senders import address_of


class Platforms:
    def __init__(self, settings: Settings) -> None:
        self._everybody = settings.cluster == "local" or settings.senders == "anybody"
        self._networks = settings.platforms

    async def admit(self, context: Context) -> None:
        """On Kubernetes any pod of any tenant could ask: others get a gRPC error."""
        address = address_of(context.peer())
        if self._everybody or any(ipaddress.ip_address(address) in network for network in self._networks):
            return
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"{address} is no platform's address (REKINDLE_PLATFORMS names them)"
        )
