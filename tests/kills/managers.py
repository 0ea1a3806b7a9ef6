"""The training sides of the kills: ours, whose manager may die as well, and MindIO, which gives a report up.

A report waits until the control plane has processed what comes before it, so that undisturbed histories are one history.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import grpc

from rekindle.model.attachment import Progress
from rekindle_training.manager.gateway import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS
from rekindle_training.manager.liveness_monitor import MEET_SECONDS
from rekindle_training.wire import CLIENT
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.fault_dialogue import ANNOUNCED, STOPPED
from tests.fakes.peer import Call, MindioPeer, ScriptedPeer
from tests.kills.calls import Journal

MANAGER = "manager"
"""A victim, like the processes of the control plane."""

RECONNECT_SECONDS = 0.5
"""Seconds in which the ranks find another manager."""

PODS_RUN = "wait until 2 pods run"
"""Activity of a restart of the job, after which the new manager comes."""

GIVEN_UP = 60.0
"""Seconds for which a report is repeated."""


class Manager(ScriptedPeer):
    """A manager whose ranks can fail."""

    tireless = False

    def attend(self, journal: Journal, report_behind: dict[str, str]) -> Self:
        """Args:
        report_behind: by kind of report, the activity or update that it waits for.
        """
        self._journal, self._report_behind = journal, report_behind
        self.acknowledged: list[tuple[str, int]] = []
        self.lives: list[list[str]] = [self.carried_out]
        """The orders that each manager carried out."""
        return self

    def strike(self, ranks: tuple[int, ...], kind: str) -> None:
        """Causes faults of the training side, which its manager reports."""
        self._spawn(self._tell(ranks, kind))

    async def _tell(self, ranks: tuple[int, ...], kind: str) -> None:
        await self.report_fault(*ranks, kind=kind)

    async def _report(self, kind: str, call: Call) -> int:
        await self._settled(self._report_behind.get(kind, ""))
        code = await super()._report(kind, call)
        if code >= 0:
            self.acknowledged.append((kind, code))
        return code

    async def _settled(self, before: str) -> None:
        if before:
            await self._journal.until(lambda: self._journal.is_settled(before))


class OurManager(Manager):
    """Behaves like `rekindle_training.manager`. It repeats a report until there is an answer, and carries orders out one after
    the other, whatever it did before. Its successor first connects to the ranks, and reports what is still broken."""

    tireless = True

    def attend(self, journal: Journal, report_behind: dict[str, str]) -> Self:
        self._met = asyncio.Event()
        self._met.set()
        self._one_at_a_time, self._in_turn = asyncio.Lock(), asyncio.Lock()
        self._trains_on_the_backup = False
        self._decided: set[str] = set()
        self._incarnations = itertools.count(2)
        return super().attend(journal, report_behind)

    async def die(self) -> None:
        """Ends like the process, with its stream, its reports, and all of its state. The ranks stay as they are."""
        await self.cut()
        self._calm()
        work, self._work = self._work, set()
        await _end(work)
        self._forget()
        self._switching = False
        self._spawn(self._succeed())

    async def restart(self) -> None:
        """Ends with all pods of the job. The manager of the new pods attaches, and reports their first step."""
        await self._settled(PODS_RUN)
        work, self._work = self._work, set()
        self._begins()
        self._goes_on()
        self._calm()
        self._forget()
        self._switching = self._paused = self._trains_on_the_backup = False
        self._spawn(self._come_with_new_pods(work))

    async def _come_with_new_pods(self, before: set[asyncio.Task[None]]) -> None:
        await _end(before)
        await self.cut()
        await self._settled("detach")
        self._met.set()
        self._one_at_a_time, self._in_turn = asyncio.Lock(), asyncio.Lock()
        await self.attach()
        await self._settled("attach")
        await self._tell_first_step(steps_lost=0)

    def _begins(self) -> None:
        self.carried_out = []
        self.lives.append(self.carried_out)

    async def _succeed(self) -> None:
        self._begins()
        if self.links_subscribed.is_set():
            self.links_subscribed.clear()
            await self.with_links()
        if self.stress_subscribed.is_set():
            self.stress_subscribed.clear()
            await self.with_tests()
        self._met.clear()
        self._one_at_a_time, self._in_turn = asyncio.Lock(), asyncio.Lock()
        await self.attach()
        await asyncio.sleep(RECONNECT_SECONDS)
        if not self.broken:
            self._spawn(self._tell_first_step(steps_lost=0))
        await asyncio.sleep(MEET_SECONDS - RECONNECT_SECONDS)
        self._met.set()
        if self.broken:
            await self.report_fault(*self.broken, kind=next(iter(self.broken.values())))
        elif self._paused:
            await self.pause()

    def _forget(self) -> None:
        super()._forget()
        self._decided.clear()

    def _check_pace(self, gap: float, order: str) -> None:
        """Accepts orders at any pace."""

    def _is_repetition(self, signal: wire.ProcessManageSignal) -> bool:
        """Returns whether a signal repeats an earlier one, as every signal after the strategy of its attempt does."""
        if signal.changeStrategy:
            self._decided.add(signal.uuid)
        return super()._is_repetition(signal) or (not signal.changeStrategy and signal.uuid in self._decided)

    async def _switch(self, ranks: wire.SwitchRankList) -> None:
        """Switches links. A link that a paused rank uses already is answered at once; the pause is reported first, since there
        are two streams."""
        await self._is_paused()
        await super()._switch(ranks)

    async def _test(self, asked: wire.StressTestRankParams) -> None:
        await self._is_paused()
        await super()._test(asked)

    async def _is_paused(self) -> None:
        async with self._one_at_a_time:
            await self._met.wait()
        await self.until(lambda: bool(self.paused_by))

    async def continue_training(self) -> None:
        """Continues training. Its predecessor may have done so without a report."""
        if self.paused_by:
            await super().continue_training()
        else:
            await self.report_status(0)

    async def _carry_out(self, order: str, signal: wire.ProcessManageSignal) -> None:
        async with self._one_at_a_time:
            await self._met.wait()
            await super()._carry_out(order, signal)

    async def answer(self, order: str, signal: wire.ProcessManageSignal) -> None:
        if order == "stop_train":
            self.state = STOPPED
            await self.report_stopped()
        elif order == "on_global_rank":
            self.state = ANNOUNCED
            self._offered = (
                ("recover", "downgrade", "dump", "exit") if "1" in self.broken.values() else ("retry", "recover", "dump", "exit")
            )
            await self.report_offers()
        else:
            self.state = ANNOUNCED  # it carries out each order, whatever it offered
            self._offered = (order,)
            await self._repair(order, signal)

    async def _first_step_again(self, strategy: str) -> None:
        """Reports the first step beside the status."""
        if strategy == "exit":
            self._spawn(self._tell_first_step(steps_lost=self.script.steps_lost or 0))

    async def _tell_first_step(self, steps_lost: int) -> None:
        """Reports the first step of a life of the ranks under this manager, until it is accepted."""
        await self._settled(self._report_behind.get("first step", ""))
        progress = Progress(incarnation=f"life-{next(self._incarnations)}", step=5, steps_lost=steps_lost)
        async with asyncio.timeout(GIVEN_UP):
            while await self._progress_code(progress):
                await asyncio.sleep(LAST_RETRY_SECONDS)

    async def _progress_code(self, progress: Progress) -> int:
        retry = FIRST_RETRY_SECONDS
        while True:
            try:
                async with self._connected():
                    return await self.report_progress(progress)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(retry)
                retry = min(1.5 * retry, LAST_RETRY_SECONDS)

    async def _backup_registers(self) -> None:
        if not self._trains_on_the_backup:
            await super()._backup_registers()

    async def _migrate(self) -> None:
        """Migrates ranks. Its predecessor may have done so without a report."""
        if not self._trains_on_the_backup:
            await super()._migrate()
        else:
            await self.report_status(0)

    async def resume(self, status: int = 0) -> None:
        self._trains_on_the_backup = True
        await super().resume(status)

    async def _report(self, kind: str, call: Call) -> int:
        """Sends a report after the previous one was answered."""
        async with self._in_turn:
            return await super()._report(kind, call)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[grpc.aio.Channel]:
        """Waits for the gateway, as each report of our manager does."""
        async with grpc.aio.insecure_channel(self.address, options=list(CLIENT)) as channel:
            await channel.channel_ready()
            yield channel

    async def _send(self, call: Call) -> int:
        retry = FIRST_RETRY_SECONDS
        async with asyncio.timeout(GIVEN_UP):
            while True:
                async with self._connected() as channel:
                    try:
                        return int((await call(RecoverStub(channel))).code)
                    except grpc.aio.AioRpcError:
                        pass
                await asyncio.sleep(retry)
                retry = min(1.5 * retry, LAST_RETRY_SECONDS)


async def _end(work: set[asyncio.Task[None]]) -> None:
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


class MindioManager(Manager, MindioPeer):
    """Gives a report up after some time."""
