"""Run of `rekindle demo in-place`, `online-retry`, `process-rescheduling`, `dying-gasp`, `pod-rescheduling` and `ladder`."""

import json
import os
import signal
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from rekindle.cli.demos import measure
from rekindle.cli.demos.scenario import RANKS, RESTART, STEP_MS, Options, Scenario, Step, until
from rekindle.model.cluster import Node
from rekindle.model.incident import Incident
from rekindle.model.keys import ENV_POD_UID, POD_RESCHEDULING, RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome

ALLOWED = {
    Mode.IN_PLACE: "recover-in-place,recover",
    Mode.PROCESS_RESCHEDULING: "recover",
    Mode.DYING_GASP: "dump",
    Mode.POD_RESCHEDULING: "dump",
    Mode.JOB_RESCHEDULING: "exit",
}
"""Recovery strategies that the job's owner allows, by the mode that the demo shows: none that is cheaper.

All are allowed for online retry, as it is the cheapest mode.
"""


FALLS = (Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.DYING_GASP, Mode.POD_RESCHEDULING)
"""Modes that a fault which comes back leads to, before the job is restarted."""

REPLACES = (Mode.PROCESS_RESCHEDULING, Mode.POD_RESCHEDULING)
"""Modes that replace pods."""
ENDS_PODS = (*REPLACES, Mode.DYING_GASP)
"""Modes that are shown with a pod that is lost."""

OUTLASTED = 3.0
"""Minimum seconds for which training lasts after the fault."""


class Strike(StrEnum):
    """Value of `--fault`: what happens to a rank."""

    KILL = "kill"
    FREEZE = "freeze"
    EXCEPTION = "exception"
    MEMORY = "memory"


class ProcessFaults(Options):
    """Options of the demos of process faults."""

    mode: Mode
    fault: Strike
    rank: int = 2
    ranks_at_once: int = 1
    falls: bool = False
    """True if the fault comes back in each mode, until the job is restarted."""

    @property
    def struck(self) -> tuple[int, ...]:
        """Ranks that the fault affects. If there are two, they are in different pods."""
        return tuple(sorted({self.rank, (self.rank + RANKS // 2) % RANKS} if self.ranks_at_once > 1 else {self.rank}))

    @property
    def raises(self) -> bool:
        """True if the fault is an exception that the job raises by itself in a step."""
        return self.fault in (Strike.EXCEPTION, Strike.MEMORY)

    @property
    def kills_pods(self) -> bool:
        return self.mode in ENDS_PODS and self.fault is Strike.KILL

    @property
    def finds_no_node(self) -> bool:
        """True if there is no node for another pod."""
        return self.falls or (self.mode is Mode.PROCESS_RESCHEDULING and self.no_spare)

    @property
    def saves(self) -> bool:
        """True if the job is restarted from the step at which training stood."""
        return self.falls or self.mode in (Mode.DYING_GASP, Mode.POD_RESCHEDULING)

    @property
    def spare_nodes(self) -> int:
        """Number of spare nodes: one for each pod that is replaced."""
        return self.ranks_at_once if self.mode in REPLACES and not self.no_spare else 0

    @property
    def spares(self) -> int:
        """Number of loaded spare processes in each pod.

        They are needed only where another process takes the rank inside its pod.
        """
        dies = self.fault in (Strike.KILL, Strike.FREEZE)
        return int(dies and not self.no_spare and self.mode in (Mode.IN_PLACE, Mode.ONLINE_RETRY))

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        return {RECOVER_STRATEGY: ALLOWED[self.mode]} if self.mode in ALLOWED else {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job."""
        return {POD_RESCHEDULING: "on"} if self.falls or self.mode is Mode.POD_RESCHEDULING else {}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        if not self.raises:
            return {}
        fault = {"fault": self.fault.value, "step": self.at_step + 1, **({"always": True} if self.falls else {})}
        faults = [{**fault, "rank": rank} for rank in self.struck]
        return {"REKINDLE_INJECT": json.dumps(faults)}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job: seconds instead of minutes, where the demo waits for a limit."""
        return {**super().limits, **({"replacementScheduled": 3} if self.finds_no_node else {})}

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        if self.mode is Mode.JOB_RESCHEDULING:
            return (RESTART,)
        if self.falls:
            return (*((mode, Outcome.ESCALATE) for mode in FALLS), RESTART)
        if self.mode is Mode.POD_RESCHEDULING:
            return (Mode.DYING_GASP, Outcome.ESCALATE), (self.mode, Outcome.RECOVERED)
        if self.finds_no_node or self.saves:
            return (self.mode, Outcome.ESCALATE), RESTART
        if self.mode is Mode.ONLINE_RETRY and self.fault is not Strike.MEMORY:
            return ((Mode.IN_PLACE, Outcome.RECOVERED),)
        return ((self.mode, Outcome.RECOVERED),)

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether no step was lost, unless the job was restarted from its last periodic checkpoint."""
        may_lose = RESTART in self.expected and not self.saves
        return super().is_met_by(result) and (may_lose or result["steps_lost"] == 0)


class ProcessFaultScenario(Scenario[ProcessFaults]):
    """Run of a demo of process faults."""

    _struck_at = 0.0
    _full: tuple[Node, ...] = ()
    """Nodes whose capacity is 0 for a while, in their original state."""

    def step_ms(self, loading: float) -> float:
        """Returns the duration of a step, in milliseconds. Training must not end before its fault is known."""
        return max(STEP_MS, 1000 * OUTLASTED / (self.options.steps - self.options.at_step))

    async def strike(self) -> None:
        """Injects the fault into the ranks now. If the job raises the fault itself, waits for the step in which it does."""
        if self.options.finds_no_node:  # not even the node of the lost pod takes it
            self._full = tuple(await self.cluster.nodes())
            for node in self._full:
                await self.cluster.set_capacity(node.metadata.name, 0)
        ranks = " and ".join(str(rank) for rank in self.options.struck)
        self.tell(Step(text=f"{'the pod of ' if self.options.kills_pods else ''}rank {ranks}: {self.options.fault}"))
        if self.options.raises:
            self._struck_at = await self._injected()
            return
        latest = {record.rank: record for record in measure.read_steps(self.job_directory)}
        struck = [latest[rank] for rank in self.options.struck]
        pids = [pid for one in struck for pid in (processes_of(one.pod_uid) if self.options.kills_pods else [one.pid])]
        self._struck_at = time.time()
        for pid in pids:
            _signal(pid, signal.SIGSTOP if self.options.fault is Strike.FREEZE else signal.SIGKILL)

    async def meanwhile(self, running: Mode | None) -> None:
        """Restores the capacity of the nodes for a restart, so that it finds those that the job had."""
        if running is Mode.JOB_RESCHEDULING:
            await self._make_room()

    async def _make_room(self) -> None:
        for node in self._full:
            await self.cluster.set_capacity(node.metadata.name, node.status.accelerators)
        self._full = ()

    async def tidy(self) -> None:
        """Restores the capacity of the nodes, however the run ended."""
        await self._make_room()
        await super().tidy()

    async def _injected(self) -> float:
        """Waits for the injected faults, and returns when the first rank failed, in seconds since the epoch."""
        wanted = [f"rank-{rank:05d}-step-{self.options.at_step + 1}" for rank in self.options.struck]
        marks = [self.job_directory / "injected" / name for name in wanted]

        async def struck() -> bool:
            return all(mark.exists() and mark.read_text() for mark in marks)

        await until(struck, f"the fault in step {self.options.at_step + 1}")
        return min(float(mark.read_text()) for mark in marks)

    def since(self, incident: Incident) -> float:
        """Returns when the first fault took effect, in seconds since the epoch."""
        return self._struck_at

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the seconds from the fault to the first step after it, and to the time at which the control plane accepted it."""
        accepted = min(fault.accepted_at for one in incidents for fault in one.faults if fault.accepted_at)
        new_step = measure.first_step_since(measure.read_steps(self.job_directory), self._struck_at, RANKS)
        return {
            "fault_to_step_seconds": round(new_step - self._struck_at, 4),
            "detection_seconds": round(accepted.timestamp() - self._struck_at, 4),
        }


def processes_of(pod_uid: str) -> list[int]:
    """Returns the ids of all processes of a pod, including its launcher: they have its UID in their environment."""
    wanted = f"{ENV_POD_UID}={pod_uid}".encode()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _carries(entry, wanted)]


def _carries(process: Path, wanted: bytes) -> bool:
    try:
        return wanted in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it ended with another one
        return
