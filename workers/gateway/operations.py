"""What a platform asks for on the wire: links of a job that trains are switched. It becomes a maintenance, as from elsewhere."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import grpc
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Busy, Refused, RekindleError, Unavailable
from rekindle.maintenances import Maintenances
from rekindle.model.links import NodeLinks
from rekindle.model.recovery import Receipt
from rekindle.settings import Settings
from workers.gateway import messages
from workers.gateway.desk import OM_IS_RUNNING, PARAMETERS, Context
from workers.gateway.senders import address_of
from workers.gateway.side_streams import SideStreams

DISTRIBUTED = "switching operation was successfully distributed"
FINISHED = "switch nic finish"
"""Words of the contract."""

LISTED = 3.0
"""Seconds in which a maintenance that was just begun appears in Temporal's list."""

ANSWER = timedelta(minutes=15)
"""How long the end of a switch is waited for, and how long ago it may have been. Source: the wire contract, 15 minutes."""

logger = logging.getLogger("gateway")


class Operations:
    def __init__(self, client: Client, settings: Settings, sides: SideStreams) -> None:
        self.sides = sides
        """On which the training side is told."""
        self._rekindle = Rekindle(client)
        self._maintenances = Maintenances(self._rekindle)
        self._everybody = settings.cluster == "local" or not settings.check_senders
        self._platforms = settings.platforms

    async def switch_links(self, context: Context, job_id: str, read: Callable[[], Sequence[NodeLinks]]) -> Receipt:
        """The contract's answer when the links are being moved, or why they are not."""

        async def ask() -> Receipt:
            links = read()
            if any(one.backup for one in links):
                await self._maintenances.fail_over(job_id, links, requested_by="SwitchNicTrack")
            else:
                await self._switch_back(job_id, links)
            logger.info("links are switched", extra={"job": job_id, "nodes": sorted({one.node for one in links})})
            return Receipt(info=DISTRIBUTED)

        return await self._answered(context, job_id, ask)

    async def _switch_back(self, job_id: str, links: Sequence[NodeLinks]) -> None:
        """Each device by the maintenance that has moved it."""
        state = (await self._rekindle.status(await self._rekindle.find(job_id))).state
        moved: dict[tuple[str, str], str] = {}
        for maintenance in (one.maintenance for one in state.links if one.maintenance):
            on_backup = (await self._maintenances.status(maintenance)).on_backup
            moved |= {(one.node, device): maintenance for one in on_backup for device in one.devices}
        by_maintenance: dict[str, list[NodeLinks]] = {}
        for one in links:
            for device in one.devices:
                if (one.node, device) not in moved:
                    raise BadInput(f"device {device} of {one.node} is on its first link already")
                by_maintenance.setdefault(moved[one.node, device], []).append(one.model_copy(update={"devices": (device,)}))
        for maintenance, back in by_maintenance.items():
            await self._maintenances.switch_back(maintenance, back, requested_by="SwitchNicTrack", wait=False)

    async def _answered(self, context: Context, job_id: str, ask: Callable[[], Awaitable[Receipt]]) -> Receipt:
        try:
            messages.job_id(job_id)
            await self._admit(context)
            return await ask()
        except Busy as error:
            return Receipt(code=OM_IS_RUNNING, info=str(error))
        except (BadInput, Refused) as error:
            return Receipt(code=PARAMETERS, info=str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    async def _admit(self, context: Context) -> None:
        """On Kubernetes any pod of any tenant could ask: accepted are the addresses that the installation names."""
        address = address_of(context.peer())
        if self._everybody or any(ipaddress.ip_address(address) in network for network in self._platforms):
            return
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"{address} is no platform's address (REKINDLE_PLATFORMS names them)"
        )

    async def switched(self, context: Context, job_id: str) -> str:
        """How the switch that was asked for last has ended, in the contract's words; waits for its end."""
        try:
            messages.job_id(job_id)
            await self._admit(context)
            maintenance = await self._newest(job_id)
            if maintenance is None:
                await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job_id} is not swtiching nic")
                raise AssertionError
            async with asyncio.timeout(ANSWER.total_seconds()):
                known = await self._maintenances.settled(maintenance.id)
        except TimeoutError:
            return "report switch nic result timeout, please check manually"
        except (BadInput, Refused) as error:
            return f"switch nic failed, {error}"
        except RekindleError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        last = known.moves[-1] if known.moves else None
        return FINISHED if last is None or last.succeeded else f"switch nic failed, {last.reason}"

    async def _newest(self, job_id: str) -> WorkflowExecution | None:
        """The job's maintenance that moves links, or the one that did so last."""
        deadline = asyncio.get_running_loop().time() + LISTED
        while True:
            found = await self._maintenances.of(job_id)
            if found or asyncio.get_running_loop().time() > deadline:
                running = [run for run in found if run.status is WorkflowExecutionStatus.RUNNING]
                return next(iter(running or found), None)
            await asyncio.sleep(0.2)
