"""Run of `rekindle demo hot-switch`: a node under a job becomes sub-healthy."""

import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from rekindle.cli.demos import measure, scenario
from rekindle.cli.demos.scenario import RESTART, Options, Scenario, Step, until
from rekindle.cli.stack import Stack
from rekindle.model.cluster import PodPhase
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import SUB_HEALTHY_STRATEGY
from rekindle.model.mode import Mode, Outcome

MARGIN = 2
"""Factor by which training after the fault is longer than what it must outlast."""


class SubHealth(Options):
    """Options of the hot switch demo."""

    pod_rank: int = 1
    backup_fails: bool = False
    pause_hangs: bool = False
    resume_fails: bool = False
    backup_dies_paused: bool = False
    """The backup pod dies after the pause, before the order to migrate."""

    real_fault: bool = False
    """True if a rank is killed while the backup loads."""

    fault_paused: bool = False
    """True if a rank that is not switched is killed after the pause."""

    tamper: str = ""
    """Part of the migration that is deliberately broken, to check that the comparison of parameters fails; empty: none."""

    @property
    def injection(self) -> list[dict[str, str]]:
        """Faults that are injected into the job."""
        faults = {
            "pause-hangs": self.pause_hangs,
            "resume-fails": self.resume_fails,
        }
        dies = {"loading": self.backup_fails, "paused": self.backup_dies_paused}
        listed = [{"fault": name} for name, wanted in faults.items() if wanted]
        listed += [{"fault": "backup-fails", "when": when} for when, wanted in dies.items() if wanted]
        return [*listed, {"fault": "rank-fails", "when": "paused"}] if self.fault_paused else listed

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job."""
        return {SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH.value}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        injected = {"REKINDLE_INJECT": json.dumps(self.injection)} if self.injection else {}
        return {**injected, **({"REKINDLE_TAMPER": self.tamper} if self.tamper else {})}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job: seconds instead of minutes, where the demo waits for a limit."""
        limits = super().limits
        if self.no_spare:
            limits["backupScheduled"] = 3
        if self.pause_hangs:
            limits["pause"] = 8
        return limits

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        if self.no_spare or self.backup_dies_paused:
            return ((Mode.HOT_SWITCH, Outcome.IGNORED),)
        if self.real_fault or self.fault_paused:
            return (Mode.HOT_SWITCH, Outcome.CANCELLED), (Mode.IN_PLACE, Outcome.RECOVERED)
        if self.resume_fails:
            return (Mode.HOT_SWITCH, Outcome.ESCALATE), (Mode.ONLINE_RETRY, Outcome.RECOVERED)
        if self.backup_fails or self.pause_hangs:
            return (Mode.HOT_SWITCH, Outcome.ESCALATE), RESTART
        return ((Mode.HOT_SWITCH, Outcome.RECOVERED),)


Meanwhile = Callable[[], Awaitable[None]]


class HotSwitchScenario(Scenario[SubHealth]):
    """One run of the demo."""

    def __init__(
        self, options: SubHealth, stack: Stack, directory: Path, tell: Callable[[Step], None], meanwhile: Meanwhile | None = None
    ) -> None:
        """Args:
        meanwhile: done once the backup pod runs, before training pauses.
        """
        super().__init__(options, stack, directory, tell)
        self._meanwhile = meanwhile

    async def strike(self) -> None:
        """Makes the node of a pod sub-healthy. Further faults happen while the backup loads."""
        await self._make_node_sub_healthy()
        if self.options.real_fault or self._meanwhile:
            await self._backup_runs()
        if self.options.real_fault:
            self._kill_a_rank()
        if self._meanwhile:
            await self._meanwhile()

    def step_ms(self, loading: float) -> float:
        """Returns the duration of a step, in milliseconds. Training must outlast the loading of a backup."""
        outlasted = self.options.limits.get("backupScheduled", loading)
        return max(scenario.STEP_MS, 1000 * MARGIN * outlasted / (self.options.steps - self.options.at_step))

    async def _make_node_sub_healthy(self) -> None:
        pods = await self.cluster.pods(self.job_id)
        wanted = str(self.options.pod_rank)
        pod = next(p for p in pods if p.metadata.annotations.get("hccl/rankIndex") == wanted)
        self.tell(Step(text=f"{pod.spec.node_name} turns sub-healthy"))
        await self.cluster.degrade(pod.spec.node_name, "80E18005", "NPU link is degraded")

    async def _backup_runs(self) -> None:
        """Waits until the hot switch has its backup pod."""

        async def loading() -> bool:
            pods = await self.cluster.pods(self.job_id)
            backups = [pod for pod in pods if pod.metadata.annotations.get("podType") == "backup"]
            return any(pod.status.phase is PodPhase.RUNNING for pod in backups)

        await until(loading, "the backup pod")

    def _kill_a_rank(self) -> None:
        """Sends SIGKILL to rank 0."""
        records = [record for record in measure.read_steps(self.job_directory) if record.rank == 0]
        self.tell(Step(text="rank 0 is killed"))
        os.kill(records[-1].pid, signal.SIGKILL)
