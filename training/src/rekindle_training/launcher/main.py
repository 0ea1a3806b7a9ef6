"""`rekindle-train`: the start command of a worker or backup pod, in torchrun's place.

    rekindle-train --nnodes 2 --nproc-per-node 8 train.py --batch-size 32
    rekindle-train --standalone --nproc-per-node 4 train.py

Starts the pod's ranks, passes signals on and ends when they have ended. With --standalone it starts a manager beside them.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rekindle_training import logs, names
from rekindle_training.launcher.arguments import Arguments, UsageInvalid, parse
from rekindle_training.launcher.child import Child, fork, spawn
from rekindle_training.launcher.pod import Pod
from rekindle_training.launcher.rank_environment import rank_environment

MANAGER = "manager"


def main(argv: Sequence[str] | None = None) -> int:
    logs.configure("rekindle-train")
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
    except UsageInvalid as error:
        print(f"rekindle-train: {error}", file=sys.stderr)  # noqa: T201  # a usage error is for people
        return 2
    children: dict[str, Child] = {}
    port = arguments.master_port
    if arguments.standalone:
        children[MANAGER], port = _start_manager(arguments)
    if arguments.start_method == "fork":
        _preload()
    for local_rank in range(arguments.nproc_per_node):
        children[str(local_rank)] = _start_rank(arguments, local_rank, port)
    return Pod(children).run()


def _start_manager(arguments: Arguments) -> tuple[Child, int]:
    """It takes any free port and says which."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    size = [f"--nnodes={arguments.nnodes}", f"--nproc-per-node={arguments.nproc_per_node}"]
    command = [sys.executable, "-m", "rekindle_training.manager.main", "--standalone", f"--announce-fd={write}", *size]
    child = spawn(command, os.environ, keep=(write,))
    os.close(write)
    with os.fdopen(read) as announced:
        line = announced.readline()
    if not line:
        sys.exit(f"rekindle-train: the manager did not start, exit code {child.wait()}; its output stands above")
    return child, int(line)


def _start_rank(arguments: Arguments, local_rank: int, port: int) -> Child:
    environment = rank_environment(arguments, local_rank, port, os.environ)
    redirects = _redirects(arguments, environment)
    if arguments.start_method == "fork":
        return fork(arguments.command, arguments.runs_as == "module", environment, redirects)
    return spawn(_command(arguments), environment, redirects)


def _command(arguments: Arguments) -> list[str]:
    python = {"script": [sys.executable, "-u"], "module": [sys.executable, "-u", "-m"], "program": []}
    return [*python[arguments.runs_as], *arguments.command]


def _redirects(arguments: Arguments, environment: Mapping[str, str]) -> dict[int, Path]:
    if arguments.log_dir is None:
        return {}
    folder = arguments.log_dir / arguments.run_id / environment[names.RANK]
    folder.mkdir(parents=True, exist_ok=True)
    files = {1: folder / "stdout.log", 2: folder / "stderr.log"}
    return {descriptor: path for descriptor, path in files.items() if arguments.redirects & descriptor}


def _preload() -> None:
    """What every rank would spend seconds on: torch, and what the first optimizer imports."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded, and that is here
    import torch._dynamo
    import torch.distributed.checkpoint  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
