"""Runs of a drill: the same job repeatedly, each in a separate folder, undisturbed or with one fault."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rekindle_training import names
from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.drill import gateway_service
from rekindle_training.launcher.drill.gateway_service import JOB, SwitchGateway
from rekindle_training.launcher.drill.processes import Processes
from rekindle_training.launcher.pod import Pod

Fault = dict[str, Any]
"""An entry of `REKINDLE_INJECT`."""

OF_THE_CLUSTER = (
    names.JOB_ID,
    names.GATEWAY_HOST,
    names.GATEWAY_PORT,
    names.POD_IP,
    names.MASTER_ADDR,
    names.MASTER_PORT,
    names.POD_ROLE,
    names.POD_RANK,
    names.POD_NAME,
    names.POD_UID,
    names.NODE,
    names.TOKEN_FILE,
    names.JOB_DIR,
    names.JOB_GENERATION,
    names.RANK,
    names.LOCAL_RANK,
    names.LINKS,
    names.ORDER_TIMEOUT,
    names.WITHOUT_ORDERS,
    names.INJECT,
    names.TAMPER,
)
"""Variables by which a run would take part in another job."""
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
HOST = "127.0.0.1"
BOTH = 3
"""Standard output and standard error, as `--redirects` counts them."""
LOGS = "logs"
"""Folder for the output of ranks, each in separate files."""
REBUILD_SECONDS = 20
"""Minimum number of seconds that a recovery of a drill has, from the order to go on to a completed step."""


@dataclass(frozen=True)
class Ended:
    folder: Path
    code: int
    seconds: float
    hung: bool = False
    """True if the run was ended at its time limit."""
    problem: str = ""
    """Reason why a switch was not carried out. Empty: it was, or there was none."""

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    @property
    def output(self) -> str:
        """Returns the output of launcher, manager and ranks, one after the other."""
        files = [self.folder / "output.log", *sorted((self.folder / LOGS).glob("*/*/*.log"))]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def was_struck(self) -> bool:
        return any((self.folder / "injected").glob("*"))


class Runs:
    """Starts the runs of one drill, one after the other."""

    def __init__(self, arguments: Arguments, folder: Path, steps: int, tick: Callable[[], None]) -> None:
        """Args:
        steps: of each run.
        tick: called a few times each second while a run goes on.
        """
        self._arguments = replace(arguments, master_addr=HOST, redirects=BOTH)
        self._folder, self._tick = folder, tick
        self._steps = steps
        self.trained = steps
        """Steps of an undisturbed run, which may end sooner."""
        self._rebuild_seconds = float(os.environ.get(names.REBUILD_TIMEOUT) or 0)
        self._limit = 0.0

    @property
    def checkpoint(self) -> int:
        """Returns the step after which a checkpoint is written."""
        return self.trained // 2

    @property
    def struck(self) -> int:
        """Returns the step in which a fault is injected."""
        return self.checkpoint + 1

    def expect(self, seconds: float) -> None:
        """Derives the limits of the runs that follow from the time of an undisturbed one."""
        self._rebuild_seconds = self._rebuild_seconds or round(max(REBUILD_SECONDS, 2 * seconds))
        self._limit = self._rebuild_seconds + 5 * seconds + 10

    def run(self, name: str, faults: Iterable[Fault] = (), *, steps: int | None = None, limit: float | None = None) -> Ended:
        """Runs the job in the folder of that name. Where there is a checkpoint, it goes on from there."""
        folder = self._folder / name
        environment = self._environment(folder, list(faults), steps or self._steps)
        arguments = replace(self._arguments, standalone=True, log_dir=folder / LOGS)
        began = time.monotonic()
        with Processes(_made(folder) / "output.log", self._tick) as processes:
            processes.start("job", lambda: Pod(arguments).run(), environment)
            if hung := not processes.wait(lambda: bool(processes.codes), self._limit if limit is None else limit):
                processes.dump()
        return Ended(folder, processes.codes.get("job", -signal.SIGKILL), time.monotonic() - began, hung)

    def switch(self, name: str, rank: int, devices: int) -> Ended:
        """Moves a rank to a fresh pod. Each rank has a separate pod, and all pause after the step of the checkpoint.

        Args:
            devices: accelerators of this machine.
        """
        folder, size = self._folder / name, self._arguments.nproc_per_node
        faults: list[Fault] = [{"fault": "pause", "rank": each, "step": self.checkpoint} for each in range(size)]
        gateway, manager = _free_port(), _free_port()
        cluster = {names.JOB_ID: JOB, names.GATEWAY_HOST: HOST, names.GATEWAY_PORT: str(gateway)}
        meeting = {names.MASTER_ADDR: HOST, names.MASTER_PORT: str(manager)}
        environment = {**self._environment(folder, faults, self._steps), **cluster, **meeting}
        result = _made(folder) / "switched.json"
        began = time.monotonic()
        with Processes(folder / "output.log", self._tick) as processes:
            served = SwitchGateway(rank, self.checkpoint, folder / "trace", result)  # type: ignore[abstract]  # what it needs
            processes.start("gateway", lambda: asyncio.run(served.serve(gateway)), environment)
            processes.start("manager", lambda: _manage(size), environment)
            for each in range(size):
                self._start_pod(processes, names.WORKER, each, _with_device(environment, each, devices))
            self._start_pod(processes, names.BACKUP, rank, _with_device(environment, rank, devices))
            return self._watch_switch(processes, folder, rank, began)

    def _start_pod(self, processes: Processes, role: str, rank: int, environment: Mapping[str, str]) -> None:
        arguments = replace(
            self._arguments,
            standalone=False,
            log_dir=Path(environment[names.JOB_DIR]) / LOGS,
            nnodes=self._arguments.nproc_per_node,
            nproc_per_node=1,
            role=role,
            node_rank=rank,
            master_port=int(environment[names.MASTER_PORT]),
        )
        uid = {names.POD_UID: f"{role}-{rank}", names.POD_NAME: f"{role}-{rank}"}
        processes.start(f"{role}-{rank}", lambda: Pod(arguments).run(), {**environment, **uid})

    def _watch_switch(self, processes: Processes, folder: Path, rank: int, began: float) -> Ended:
        """Ends the old pod as soon as its rank has moved, as a cluster does."""
        old, new = f"{names.WORKER}-{rank}", f"{names.BACKUP}-{rank}"
        result = folder / "switched.json"
        others = [f"{names.WORKER}-{each}" for each in range(self._arguments.nproc_per_node) if each != rank]
        pods = {old, new, *others}
        processes.wait(lambda: result.exists() or bool(pods & processes.codes.keys()), self._limit)
        problem = gateway_service.ended(result)
        if problem == "" and old not in processes.codes:
            processes.end(old)
        left = self._limit - (time.monotonic() - began)
        done = not problem and processes.wait(lambda: {new, *others} <= processes.codes.keys(), max(left, 0))
        if hung := not problem and not done:
            processes.dump()
        failed = [code for name in (new, *others) if (code := processes.codes.get(name, 0))]
        return Ended(folder, failed[0] if failed else 0, time.monotonic() - began, hung, problem or "")

    def _environment(self, folder: Path, faults: list[Fault], steps: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OF_THE_CLUSTER}
        defaults = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONFAULTHANDLER": "1"}
        ours = {
            names.JOB_DIR: str(folder),
            names.TRACE: str(folder / "trace"),
            names.DRILL_STEPS: str(steps),
            names.CHECKPOINT_EVERY: str(self.checkpoint),
        }
        if self._rebuild_seconds:
            ours[names.REBUILD_TIMEOUT] = f"{self._rebuild_seconds:.0f}"
        if faults:
            ours[names.INJECT] = json.dumps(faults)
        return {**defaults, **kept, **ours}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _manage(size: int) -> int:
    from rekindle_training.manager.main import main

    return main([f"--nnodes={size}", "--nproc-per-node=1"])


def _with_device(environment: Mapping[str, str], rank: int, devices: int) -> dict[str, str]:
    """Returns the environment of the pod of one rank. It sees one accelerator, as a pod of a cluster does."""
    if not devices:
        return dict(environment)
    known = next((environment[name] for name in VISIBLE_DEVICES if environment.get(name)), "")
    every = known.split(",") if known else [str(number) for number in range(devices)]
    return {**environment, **dict.fromkeys(VISIBLE_DEVICES, every[rank % len(every)])}


def _free_port() -> int:
    """Returns a port that is none of those which the system gives to connections: one of them could take it too early."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, random.randrange(first // 4, first // 2)))
            return int(probe.getsockname()[1])
