"""What a platform asks for on the wire of a job that trains: links are switched, as a maintenance, or nodes are tested."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import grpc
from temporalio.client import Client, WorkflowExecutionStatus

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Busy, Refused, RekindleError, Unavailable
from rekindle.maintenances import Maintenances
from rekindle.model.links import NodeLinks
from rekindle.model.recovery import Receipt
from rekindle.model.stress import StressRequest
from rekindle.policy.stress import message
from rekindle.settings import Settings
from rekindle.stress_tests import StressTests
from workers.gateway import messages
from workers.gateway.desk import OM_IS_RUNNING, PARAMETERS, Context
from workers.gateway.senders import address_of
from workers.gateway.side_streams import SideStreams

DISTRIBUTED = "switching operation was successfully distributed"
FINISHED = "switch nic finish"
TEST_DISTRIBUTED = "stress test operation was successfully distributed"
"""Words of the contract."""

LISTED = 3.0
"""Seconds in which what was just begun appears in Temporal's list."""

ANSWER = timedelta(minutes=15)
"""How long the end of a switch is waited for. Source: the wire contract, 15 minutes."""

logger = logging.getLogger("gateway")


class Operations:
    def __init__(self, client: Client, settings: Settings, sides: SideStreams) -> None:
        self.sides = sides
        """On which the training side is told."""
        self._rekindle = Rekindle(client)
        self._maintenances = Maintenances(self._rekindle)
        self._tests = StressTests(self._rekindle)
        self._begun: dict[str, str] = {}
        """The last test of each job that was asked for here."""
        self._moved: dict[str, str] = {}
        """The maintenance of each job that was asked here to move links last."""
        self._everybody = settings.cluster == "local" or settings.senders == "anybody"
        self._platforms = settings.platforms

    async def switch_links(self, context: Context, job_id: str, read: Callable[[], Sequence[NodeLinks]]) -> Receipt:
        """The contract's answer when the links are being moved, or why they are not."""

        async def ask() -> Receipt:
            links = read()
            if any(one.backup for one in links):
                self._moved[job_id] = await self._maintenances.fail_over(job_id, links, requested_by="SwitchNicTrack")
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
            self._moved[job_id] = maintenance

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
        maintenance = await self._asked_for(context, job_id, self._newest, "swtiching nic")
        try:
            async with asyncio.timeout(ANSWER.total_seconds()):
                known = await self._maintenances.settled(maintenance)
        except TimeoutError:
            return "report switch nic result timeout, please check manually"
        except (BadInput, Refused) as error:
            return f"switch nic failed, {error}"
        except RekindleError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        last = known.moves[-1] if known.moves else None
        return FINISHED if last is None or last.succeeded else f"switch nic failed, {last.reason}"

    async def _asked_for(self, context: Context, job_id: str, find: Callable[[str], Awaitable[str]], doing: str) -> str:
        """The workflow that does it. Who asked for nothing, or for no job, gets a gRPC error. Source: the wire contract."""
        try:
            messages.job_id(job_id)
            await self._admit(context)
            if found := await find(job_id):
                return found
            words = f"jobId={job_id} is not {doing}"
        except BadInput as error:
            words = str(error)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        await context.abort(grpc.StatusCode.UNKNOWN, words)
        raise AssertionError

    # ---- stress tests

    async def test(self, context: Context, job_id: str, read: Callable[[], StressRequest]) -> Receipt:
        """The contract's answer when training is being paused for it, or why it is not."""

        async def ask() -> Receipt:
            test = await self._tests.begin(job_id, read(), requested_by="StressTest")
            self._begun[job_id] = test
            logger.info("devices are tested", extra={"job": job_id, "test": test})
            return Receipt(info=TEST_DISTRIBUTED)

        return await self._answered(context, job_id, ask)

    async def tested(self, context: Context, job_id: str) -> str:
        """What the test that was asked for last has found, in the contract's words; waits for its end."""
        test = await self._asked_for(context, job_id, self._newest_test, "stress testing")
        try:
            verdict = await self._tests.verdict(test)
        except (BadInput, Refused) as error:
            return f"stress test failed, {error}"
        except RekindleError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        return message(verdict.tested) if verdict.tested else f"stress test failed, {verdict.reason}"

    async def _newest_test(self, job_id: str) -> str:
        """It may have been begun at another gateway, a moment ago."""
        if begun := self._begun.get(job_id):
            return begun
        deadline = asyncio.get_running_loop().time() + LISTED
        while True:
            test = await self._tests.newest(job_id)
            if test or asyncio.get_running_loop().time() > deadline:
                return test
            await asyncio.sleep(0.2)

    async def _newest(self, job_id: str) -> str:
        """The job's maintenance that moves links, or the one that did so last; empty: none does."""
        if moved := self._moved.get(job_id):
            return moved
        deadline = asyncio.get_running_loop().time() + LISTED
        while True:
            found = await self._maintenances.of(job_id)
            if found or asyncio.get_running_loop().time() > deadline:
                running = [run for run in found if run.status is WorkflowExecutionStatus.RUNNING]
                return next((run.id for run in running or found), "")
            await asyncio.sleep(0.2)
