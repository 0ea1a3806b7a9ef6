"""Checks that a request for operations on jobs, or a report of node faults, comes from the address of a configured platform."""

import ipaddress

import grpc

from rekindle.settings import Settings
from workers.clusters import row_of
from workers.gateway.access import Context
from workers.gateway.caller_auth import address_of


class Platforms:
    def __init__(self, settings: Settings) -> None:
        self._everybody = row_of(settings).callers is None or settings.senders == "anybody"
        self._networks = settings.platforms

    async def admit(self, context: Context) -> None:
        """Aborts the call unless it comes from a platform's address. Without this check any pod on Kubernetes could call."""
        address = address_of(context.peer())
        if self._everybody or any(ipaddress.ip_address(address) in network for network in self._networks):
            return
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"{address} is no platform's address (REKINDLE_PLATFORMS names them)"
        )
