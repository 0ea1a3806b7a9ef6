"""One real stack for the whole folder: Temporal server, control worker, gateway, watcher, local cluster."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_asyncio

from rekindle.cli.demos import measure
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike, processes_of
from rekindle.cli.demos.sub_health import HotSwitchScenario, Meanwhile, SubHealth
from rekindle.cli.stack import Machine, Stack, running
from rekindle.model.keys import RANK_INDEX
from rekindle.model.mode import Mode
from rekindle.model.picture import StepRecord

Then = tuple[str, Callable[["StruckAgain"], Awaitable[None]]]
"""Text in the log of the manager, and what happens when it is there."""

PATIENCE = 60.0
STEPS = 60


def moved(result: dict[str, Any]) -> list[int]:
    """Lists the ranks that have another process."""
    return [rank["rank"] for rank in result["switched"]]


@dataclass
class Product:
    """The running product, and ways to run the demos' scenarios on it."""

    stack: Stack
    directory: Path

    async def run(self, meanwhile: Meanwhile | None = None, **changes: Any) -> dict[str, Any]:
        """Returns the result object of the hot switch demo for one run with these options."""
        options = SubHealth(**{"steps": STEPS, **changes})
        return await HotSwitchScenario(options, self.stack, self.directory, lambda _: None, meanwhile).run()

    async def struck(self, mode: Mode, fault: Strike, then: Then | None = None, **changes: Any) -> dict[str, Any]:
        """The object of the demo of a process fault, which went as its options have it go.

        Args:
            then: happens in the moment in which the job's manager writes a word.
        """
        options = ProcessFaults(**{"mode": mode, "fault": fault, "steps": STEPS, **changes})
        result = await StruckAgain(options, self.stack, self.directory, then).run()
        assert options.is_met_by(result), result
        return result


class StruckAgain(ProcessFaultScenario):
    """A process fault after which something else happens as soon as the recovery has reached a certain point."""

    def __init__(self, options: ProcessFaults, stack: Stack, directory: Path, then: Then | None) -> None:
        super().__init__(options, stack, directory, lambda _: None)
        self._then = then

    async def strike(self) -> None:
        await super().strike()
        if self._then:
            word, again = self._then
            await self._manager_writes(word)
            await again(self)

    async def _manager_writes(self, word: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(word in log.read_text() for log in (self.job_directory / "logs").glob("*manager*")):
                await asyncio.sleep(0.002)

    async def kill_manager(self) -> None:
        pods = await self.cluster.pods(self.job_id)
        manager = next(pod for pod in pods if RANK_INDEX not in pod.metadata.annotations)
        _kill(processes_of(manager.metadata.uid))

    async def kill_rank(self, rank: int) -> None:
        _kill([self._last_step(rank).pid])

    async def kill_pod(self, rank: int) -> None:
        """Kills all processes of the pod of this rank."""
        _kill(processes_of(self._last_step(rank).pod_uid))

    def _last_step(self, rank: int) -> StepRecord:
        return [record for record in measure.read_steps(self.job_directory) if record.rank == rank][-1]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product() -> AsyncIterator[Product]:
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with running(Path(folder), Machine(nodes=3, accelerators=2)) as stack:
            yield Product(stack, Path(folder))
