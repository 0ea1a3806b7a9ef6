"""A training job of two pods with two ranks each, its manager and its backups, as a cluster would run them."""

import asyncio
import json
import statistics
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rekindle.cli.ports import free_ports
from rekindle_training import examples
from tests.training.gateway_service import JOB, GatewayPeer
from tests.training.processes import Process, Zygote

EXAMPLE = str(Path(examples.__path__[0]) / "gpt.py")
STEPS = 40
PODS, RANKS_PER_POD = 2, 2
WORLD = PODS * RANKS_PER_POD
"""Ranks of the job; those of pod rank p are 2p and 2p + 1."""

Step = dict[str, Any]


@dataclass
class Job:
    folder: Path
    zygote: Zygote
    gateway: GatewayPeer
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=lambda: ["--steps", str(STEPS), "--step-ms", "40"])
    script: str = EXAMPLE
    flags: list[str] = field(default_factory=list)
    """Flags of launchers."""
    manager_flags: list[str] = field(default_factory=list)
    pods: int = PODS
    ranks_of_all: int = WORLD
    generation: int = 0
    started: dict[str, Process] = field(default_factory=dict)
    """Pods by name. A pod that was started again is listed here, and its predecessor in `gone`."""
    gone: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = free_ports(1)[0]
        self.pace = self.folder / "pace"
        if self.script == EXAMPLE:
            self.arguments += ["--step-ms-file", str(self.pace)]

    def slow_down(self, step_ms: int = 500) -> None:
        """Makes steps take longer and compute the same, for a test that does something while training goes on."""
        if self.script == EXAMPLE:
            self.arguments[self.arguments.index("--step-ms") + 1] = str(step_ms)
        else:
            self.environment["PACE_MS"] = str(step_ms)

    def hurry(self) -> None:
        """Makes steps take only as long as they compute, since nothing more happens to training."""
        scratch = self.pace.with_suffix(".new")
        scratch.write_text("0")
        scratch.replace(self.pace)

    # Pods.

    async def start(self, *backups: int) -> None:
        """Starts the job. Backups that start with it are loaded early in it, however slow the machine is."""
        await self.manager()
        for pod_rank in range(self.pods):
            await self.worker(pod_rank)
        for pod_rank in backups:
            await self.backup(pod_rank)

    async def manager(self) -> Process:
        return await self._pod("manager", "manager", "manager", "", [*self._size, *self.manager_flags])

    async def worker(self, pod_rank: int, role: str = "worker") -> Process:
        flags = [*self._size, "--start-method", "fork", *self.flags]
        return await self._pod("train", f"{role}-{pod_rank}", role, str(pod_rank), [*flags, self.script, *self.arguments])

    async def backup(self, pod_rank: int) -> Process:
        return await self.worker(pod_rank, "backup")

    async def standby(self, name: str = "standby") -> str:
        """Starts a standby, and returns the uid of its pod."""
        number = len(self.started) + len(self.gone)
        await self._pod("train", name, "standby", None, [*self._size, *self.flags, self.script, *self.arguments])
        return f"uid-{number}"

    @property
    def _size(self) -> list[str]:
        return ["--nnodes", str(self.pods), "--nproc-per-node", str(self.ranks_of_all // self.pods)]

    @staticmethod
    def ranks(pod_rank: int) -> tuple[int, ...]:
        return tuple(range(pod_rank * RANKS_PER_POD, (pod_rank + 1) * RANKS_PER_POD))

    def children(self, pod: str) -> list[int]:
        """Returns the processes of a pod's ranks."""
        (zygote,) = children(self.started[pod].pid)
        return children(zygote)

    async def lose(self, pod: str) -> None:
        """Kills a pod with all its processes, as a failed node would; returns when none is left."""
        processes = self.children(pod)
        self.started[pod].kill()
        await self.started[pod].code()
        async with asyncio.timeout(60):
            while any(Path(f"/proc/{process}").exists() for process in processes):
                await asyncio.sleep(0.005)

    async def codes(self) -> set[int]:
        """Returns the exit codes of all pods when the last one has ended; training hurries to its end."""
        self.hurry()
        return set(await asyncio.gather(*(process.code() for process in [*self.started.values(), *self.gone])))

    async def printed(self, text: str, times: int = 1, within: float = 60) -> None:
        """Waits until the manager has printed a text."""
        output = self.started["manager"].output
        async with asyncio.timeout(within):
            while not output.exists() or output.read_text().count(text) < times:
                await asyncio.sleep(0.02)

    async def _pod(self, program: str, name: str, role: str, pod_rank: str | None, argv: list[str]) -> Process:
        number = len(self.started) + len(self.gone)
        if name in self.started:
            self.gone.append(self.started.pop(name))
        identity = {
            "MINDX_TASK_ID": JOB,
            "MINDX_SERVER_IP": "127.0.0.1",
            "REKINDLE_GATEWAY_PORT": str(self.gateway.port),
            "POD_IP": "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "REKINDLE_POD_ROLE": role,
            "REKINDLE_POD_NAME": f"{name}-{number}",
            "REKINDLE_POD_UID": f"uid-{number}",
            "REKINDLE_NODE": f"node-{number}",
            "REKINDLE_JOB_DIR": str(self.folder),
            "REKINDLE_GENERATION": str(self.generation),
            "PACE_FILE": str(self.pace),
        }
        if pod_rank is not None:
            identity["REKINDLE_POD_RANK"] = pod_rank
        output = self.folder / f"{name}-{number}.log"
        process = await self.zygote.run(program, argv, {**identity, **self.environment}, output)
        self.started[name] = process
        return process

    async def end(self) -> None:
        for process in self.started.values():
            process.kill()
        await self.codes()

    def outputs(self) -> str:
        outputs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {output.name}\n{output.read_text()}" for output in outputs)

    # What the ranks wrote.

    def steps(self, rank: int) -> list[Step]:
        path = self.folder / "steps" / f"rank-{rank:05d}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    async def reached(self, step: int, rank: int = 0, within: float = 60) -> None:
        """Waits for a completed step, by its line in the log."""
        async with asyncio.timeout(within):
            while not any(line["step"] >= step for line in self.steps(rank)):
                await asyncio.sleep(0.02)

    def final(self) -> list[bytes]:
        return [(self.folder / "final" / f"rank-{rank:05d}.bin").read_bytes() for rank in range(WORLD)]

    def executed_once(self, *ranks: int) -> bool:
        """Returns whether these ranks, by default all, executed each step once. A killed rank may have done a step that it did
        not log."""
        return all([line["step"] for line in self.steps(rank)] == list(range(1, STEPS + 1)) for rank in ranks or range(WORLD))

    def pause_seconds(self) -> float:
        """The largest gap between two steps of any rank, less the median gap."""
        gaps: list[float] = []
        for rank in range(WORLD):
            lines = self.steps(rank)
            gaps += [later["start"] - earlier["end"] for earlier, later in pairwise(lines)]
        return max(gaps) - statistics.median(gaps)


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
