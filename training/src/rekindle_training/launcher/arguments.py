"""Command line and environment of `rekindle-train`: torchrun's flags with torchrun's defaults.

A start command changes by one word only. Read by `main`. A flag that cannot be honoured is refused with the accepted values,
except where ignoring it changes nothing.
"""

import argparse
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rekindle_training import names
from rekindle_training.launcher import drill_options, flags
from rekindle_training.launcher.address import meeting_point
from rekindle_training.launcher.drill_options import Drill
from rekindle_training.launcher.flags import UsageInvalid
from rekindle_training.launcher.pod_rank import pod_rank

__all__ = ["Arguments", "UsageInvalid", "parse"]


@dataclass(frozen=True)
class Arguments:
    nnodes: int
    nproc_per_node: int
    role: str
    """Role of the pod, as the cluster sets it. A standby's role ends when it is given a rank."""
    pod_uid: str
    node_rank: int
    """Number of the pod. Meaningless for a standby."""
    master_addr: str
    master_port: int
    run_id: str
    standalone: bool
    """True if there is no control plane: the launcher starts the manager."""
    start_method: str
    spares: int
    """Number of processes that wait to replace the process of a rank."""
    max_restarts: int
    """Maximum number of restarts of all ranks together, from the last checkpoint."""
    stall_seconds: int
    """Seconds that ranks may wait for another one before it is replaced. 0: no limit."""
    grace_seconds: int | None
    """Grace period in seconds after SIGTERM. None: it depends on the reason for which the ranks are ended."""
    signals: tuple[int, ...]
    """Signals that the launcher passes on to its ranks."""
    role_name: str
    log_dir: Path | None
    redirects: int
    """Streams that are written to files. 1: standard output, 2: standard error, 3: both."""
    command: tuple[str, ...]
    """Command that each rank runs."""
    runs_as: str
    """Kind of the command: `script`, `module`, or `program` (--no-python)."""
    drill: Drill | None = None

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def is_standby(self) -> bool:
        """Returns whether the pod is a standby: its processes are loaded and wait until the pod is given a rank."""
        return self.role == names.STANDBY


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Arguments:
    try:
        return _parse(argv, environment)
    except UsageInvalid as error:
        if variables := flags.from_environment(environment):
            raise UsageInvalid(f"{error} (the environment has {' '.join(variables)})") from None
        raise


def _parse(argv: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    given = flags.read(argv, environment)
    if (drill := _drill(given)) is not None:
        environment = {}  # a drill takes no part in a job around it
    standalone = given.standalone or not (environment.get(names.JOB_ID) or environment.get(names.GATEWAY_HOST))
    nnodes = _nodes(given.nnodes)
    role = environment.get(names.POD_ROLE) or names.WORKER
    _check(given, nnodes, standalone)
    if role == names.STANDBY:
        _check_standby(given, standalone)
    addr, port = meeting_point(given, environment, standalone=standalone)
    return Arguments(
        nnodes=nnodes,
        nproc_per_node=_processes(given.nproc_per_node or ("1" if drill is None else str(drill_options.RANKS))),
        role=role,
        pod_uid=environment.get(names.POD_UID, ""),
        node_rank=0 if role == names.STANDBY else pod_rank(given.node_rank, nnodes, environment),
        master_addr=addr,
        master_port=port,
        run_id=given.rdzv_id or environment.get(names.JOB_ID) or "none",
        standalone=standalone,
        start_method=given.start_method,
        spares=_count("--spares", given.spares),
        max_restarts=_count("--max-restarts", given.max_restarts),
        stall_seconds=_count("--stall-seconds", given.stall_seconds),
        grace_seconds=None if given.grace_seconds is None else _count("--grace-seconds", given.grace_seconds, lowest=1),
        signals=_signals(given.signals_to_handle),
        role_name=given.role,
        log_dir=Path(given.log_dir).absolute() if given.log_dir else None,
        redirects=_redirects(given),
        command=(given.training_script, *given.training_script_args),
        runs_as="module" if given.module else "program" if given.no_python else "script",
        drill=drill,
    )


def _drill(given: argparse.Namespace) -> Drill | None:
    try:
        return drill_options.read(given)
    except ValueError as error:
        raise UsageInvalid(str(error)) from None


def _check(given: argparse.Namespace, nnodes: int, standalone: bool) -> None:
    if given.module and given.no_python:
        raise UsageInvalid("--module and --no-python contradict each other: give one of them")
    if given.no_python and given.start_method == "fork":
        raise UsageInvalid("--no-python and --start-method fork contradict each other: only a Python script can be forked")
    if standalone and nnodes != 1:
        reason = "--standalone" if given.standalone else f"a job without {names.JOB_ID} and {names.GATEWAY_HOST}"
        raise UsageInvalid(f"--nnodes {nnodes}: {reason} runs on one machine, accepted is --nnodes 1")
    if given.no_python and given.spares != "0":
        raise UsageInvalid("--no-python and --spares contradict each other: a spare runs a Python script ahead")
    if given.rdzv_backend not in ("", "static", "c10d", "rekindle"):
        raise UsageInvalid(
            f"--rdzv-backend {given.rdzv_backend}: ranks meet in the job's manager; accepted are static, c10d and rekindle, "
            "which all mean that"
        )
    if given.tee != "0":
        raise UsageInvalid(f"--tee {given.tee}: accepted is 0; use --redirects to write the ranks' output to files")


def _check_standby(given: argparse.Namespace, standalone: bool) -> None:
    role = f"{names.POD_ROLE}={names.STANDBY}"
    if standalone:
        raise UsageInvalid(f"{role}: only a control plane gives a standby its rank, and this job has none ({names.GATEWAY_HOST})")
    if given.no_python:
        raise UsageInvalid(f"{role} and --no-python contradict each other: a standby runs a Python script ahead")


def _nodes(text: str) -> int:
    """Returns the number of pods from `2` or, as torchrun writes it, `2:2`.

    The cluster may change that number, but not the launcher.
    """
    low, _, high = text.partition(":")
    if not low.isdigit() or int(low) < 1 or (high and high != low):
        raise UsageInvalid(f"--nnodes {text}: accepted is a whole number from 1, or MIN:MAX with both the same")
    return int(low)


def _processes(text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text in ("cpu", "gpu", "auto"):
        return _devices(text)
    raise UsageInvalid(f"--nproc-per-node {text}: accepted are a whole number from 1, cpu, gpu and auto")


def _count(flag: str, text: str, lowest: int = 0) -> int:
    if not text.isdigit() or int(text) < lowest:
        raise UsageInvalid(f"{flag} {text}: accepted is a whole number from {lowest}")
    return int(text)


def _signals(text: str) -> tuple[int, ...]:
    known = {number.name: int(number) for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)}
    found = [name.strip() for name in text.split(",")]
    if wrong := [name for name in found if name not in known]:
        raise UsageInvalid(
            f"--signals-to-handle {wrong[0]}: accepted are names of signals with commas between them such as SIGTERM,SIGINT"
        )
    return tuple(known[name] for name in found)


def _devices(kind: str) -> int:
    """Returns the number of devices as torchrun counts it. `auto`: the accelerators, or the processors if there are none."""
    if kind != "cpu":
        import torch

        if (
            devices := torch.cuda.device_count()
        ):  # `is_available` loads the driver, which no process works with that is forked later
            return devices
        if hasattr(torch, "npu") and torch.npu.is_available():
            return int(torch.npu.device_count())
        if kind == "gpu":
            raise UsageInvalid("--nproc-per-node gpu: there is no accelerator here; accepted are a whole number, cpu and auto")
    return os.cpu_count() or 1


def _redirects(given: argparse.Namespace) -> int:
    if given.redirects not in ("0", "1", "2", "3"):
        raise UsageInvalid(f"--redirects {given.redirects}: accepted are 0 (none), 1 (stdout), 2 (stderr) and 3 (both)")
    if given.redirects != "0" and not given.log_dir:
        raise UsageInvalid(f"--redirects {given.redirects} needs --log-dir, the folder to write to")
    return int(given.redirects)
