"""Operations that platforms request for a job that trains: link switches, carried out as a maintenance, and stress tests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import grpc
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Busy, NotMoved, Refused, RekindleError, Unavailable
from rekindle.maintenances import Maintenances
from rekindle.model.dialogue import Receipt
from rekindle.model.links import NodeLinks
from rekindle.model.maintenance import Maintenance, Stage
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import StressRequest
from rekindle.model.verdict import Verdict
from rekindle.own_verdicts import first_word, own_verdicts
from rekindle.policy.operations.device_checks import message
from rekindle.settings import Settings
from rekindle.stress_tests import StressTests
from workers.gateway import messages
from workers.gateway.access import OM_IS_RUNNING, PARAMETERS, Context
from workers.gateway.platforms import Platforms
from workers.gateway.secondary_streams import SideStreams

DISTRIBUTED = "switching operation was successfully distributed"
FINISHED = "switch nic finish"
TEST_DISTRIBUTED = "stress test operation was successfully distributed"
"""Messages of the wire contract."""

LISTED = 3.0
"""Seconds within which a workflow that was just started appears in Temporal's list."""

ANSWER = timedelta(minutes=15)
"""Longest time to wait for the end of a switch. Source: the wire contract, 15 minutes."""

Found = TypeVar("Found", str, tuple[str, ...])

logger = logging.getLogger("gateway")


class Operations:
    def __init__(self, client: Client, settings: Settings, sides: SideStreams) -> None:
        self.sides = sides
        """Side streams, on which the training side receives link switches and stress tests."""
        self._rekindle = Rekindle(client)
        self._maintenances = Maintenances(self._rekindle)
        self._tests = StressTests(self._rekindle)
        self._begun: dict[str, str] = {}
        """Id of the last stress test of each job that was requested at this gateway."""
        self._moved: dict[str, tuple[str, ...]] = {}
        """Ids of the maintenances, by job, that the last request at this gateway asked to move links."""
        self.platforms = Platforms(settings)

    async def switch_links(self, context: Context, job_id: str, read: Callable[[], Sequence[NodeLinks]]) -> Receipt:
        """Starts a link switch. Returns the contract's OK once the links are being moved, or the reason why they are not."""

        async def ask() -> Receipt:
            links = read()
            if any(one.backup for one in links):
                self._moved[job_id] = (await self._maintenances.fail_over(job_id, links, requested_by="SwitchNicTrack"),)
            else:
                await self._switch_back(job_id, links)
            logger.info("link switch started", extra={"job": job_id, "nodes": sorted({one.node for one in links})})
            return Receipt(info=DISTRIBUTED)

        return await self._answered(context, job_id, ask)

    async def _switch_back(self, job_id: str, links: Sequence[NodeLinks]) -> None:
        """Switches each device back by the maintenance that has moved it. Raises BadInput for a device that none has moved."""
        state = (await self._rekindle.status(await self._rekindle.find(job_id))).state
        moved: dict[tuple[str, str], str] = {}
        for maintenance in (one.maintenance for one in state.links):
            if not _is_running(await self._maintenances.run(maintenance)):
                continue
            on_backup = (await self._maintenances.status(maintenance)).on_backup
            moved |= {(one.node, device): maintenance for one in on_backup for device in one.devices}
        by_maintenance: dict[str, list[NodeLinks]] = {}
        for one in links:
            for device in one.devices:
                if (one.node, device) not in moved:
                    here = "was moved by no maintenance, or " if state.links else ""
                    raise BadInput(f"device {device} of {one.node} {here}is on its first link already")
                by_maintenance.setdefault(moved[one.node, device], []).append(one.model_copy(update={"devices": (device,)}))
        for maintenance, back in by_maintenance.items():
            await self._maintenances.switch_back(maintenance, back, requested_by="SwitchNicTrack", wait=False)
        self._moved[job_id] = tuple(by_maintenance)

    async def _answered(self, context: Context, job_id: str, ask: Callable[[], Awaitable[Receipt]]) -> Receipt:
        try:
            messages.job_id(job_id)
            await self.platforms.admit(context)
            return await ask()
        except Busy as error:
            return Receipt(code=OM_IS_RUNNING, info=str(error))
        except (BadInput, Refused, NotMoved) as error:
            return Receipt(code=PARAMETERS, info=str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    async def switched(self, context: Context, job_id: str) -> str:
        """Waits for the end of the last requested switch, and returns its result as a message of the contract."""
        maintenances = await self._asked_for(context, job_id, self._newest, "swtiching nic")
        try:
            async with asyncio.timeout(ANSWER.total_seconds()):
                known = [await self._settled(job_id, maintenance) for maintenance in maintenances]
        except TimeoutError:
            return "report switch nic result timeout, please check manually"
        except (BadInput, Refused, NotMoved) as error:
            return f"switch nic failed, {error}"
        except RekindleError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        failed = [one.last.reason for one in known if one.last and not one.last.succeeded]
        return f"switch nic failed, {'; '.join(failed)}" if failed else FINISHED

    async def _settled(self, job_id: str, maintenance: str) -> Maintenance:
        """Waits until a maintenance has settled. Raises NotMoved as soon as the switch has failed, whatever follows."""
        own = own_verdicts(self._rekindle, job_id, maintenance, Mode.LINK_SWITCH)
        word = await first_word(own, self._maintenances.settled(maintenance), lambda one: one.outcome is Outcome.ESCALATE)
        if isinstance(word, Verdict):
            raise NotMoved(word.reason)
        return word

    async def _asked_for(self, context: Context, job_id: str, find: Callable[[str], Awaitable[Found]], doing: str) -> Found:
        """Returns the workflow of the requested operation. Aborts with a gRPC error without one. Source: the wire contract."""
        try:
            messages.job_id(job_id)
            await self.platforms.admit(context)
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
        """Starts a stress test. Returns OK once training is being paused for it, or the reason why it is not."""

        async def ask() -> Receipt:
            test = await self._tests.begin(job_id, read(), requested_by="StressTest")
            self._begun[job_id] = test
            logger.info("device test started", extra={"job": job_id, "test": test})
            return Receipt(info=TEST_DISTRIBUTED)

        return await self._answered(context, job_id, ask)

    async def tested(self, context: Context, job_id: str) -> str:
        """Waits for the end of the last requested stress test, and returns its result as a message of the contract."""
        test = await self._asked_for(context, job_id, self._newest_test, "stress testing")
        try:
            own = own_verdicts(self._rekindle, job_id, test, Mode.STRESS_TEST)
            verdict = await first_word(own, self._tests.verdict(test), lambda one: one.tested is not None)
        except (BadInput, Refused) as error:
            return f"stress test failed, {error}"
        except RekindleError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        return message(verdict.tested) if verdict.tested else f"stress test failed, {verdict.reason}"

    async def _newest_test(self, job_id: str) -> str:
        """Returns the id of the job's newest stress test, which another gateway may just have started; empty: there is none."""
        deadline = asyncio.get_running_loop().time() + LISTED
        while True:
            test = await self._tests.newest(job_id, self._begun.get(job_id, ""))
            if test or asyncio.get_running_loop().time() > deadline:
                return test
            await asyncio.sleep(0.2)

    async def _newest(self, job_id: str) -> tuple[str, ...]:
        """Returns the job's maintenances that move links now, or the last one that did; empty: there are none.

        Another gateway may have requested them.
        """
        here, deadline = self._moved.get(job_id, ()), asyncio.get_running_loop().time() + LISTED
        while True:
            try:
                asking = (await self._rekindle.status(job_id)).front
                found = await self._maintenances.of(job_id)
            except BadInput:
                if here:  # the job has ended
                    return here
                raise
            known = {run.id for run in found}
            for name in {asking, *here} - known - {""}:
                if run := await self._maintenances.run(name):
                    found.append(run)
            if found:
                return await self._last_of([run for run in found if _is_running(run) or run.id in here] or found[:1], here)
            if asyncio.get_running_loop().time() > deadline:
                return ()
            await asyncio.sleep(0.2)

    async def _last_of(self, runs: Sequence[WorkflowExecution], here: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the runs that move links now, or the last one that did, with all that the same request named."""
        moving, moved = [], dict[str, datetime]()
        for run in runs:
            known = await self._maintenances.status(run.id)
            moved[run.id] = known.last.at if known.last else run.start_time
            if _is_running(run) and known.stage is not Stage.ON_BACKUP:
                moving.append(run.id)
        last = moving or [max(moved, key=lambda name: moved[name])]
        return tuple(dict.fromkeys((*last, *here))) if set(last) & set(here) else tuple(last)


def _is_running(run: WorkflowExecution | None) -> bool:
    return run is not None and run.status is WorkflowExecutionStatus.RUNNING
