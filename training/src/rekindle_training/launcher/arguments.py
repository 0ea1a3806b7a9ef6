"""The command line of `rekindle-train`: torchrun's flags with torchrun's defaults, so that a start command changes by one word.

Read by `main`. A flag that cannot be honoured is refused with what is accepted, except where ignoring it changes nothing.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rekindle_training import names
from rekindle_training.drill import options
from rekindle_training.drill.options import Drill

DESCRIPTION = """\
Starts a training script once for each accelerator of this pod, in torchrun's place and with its flags, and keeps
training going: a rank that is killed, freezes or fails is replaced while the others wait where they are.

    rekindle-train --standalone --nproc-per-node 4 --spares 1 train.py --batch-size 32
    rekindle-train --nnodes 2 --nproc-per-node 8 train.py
    rekindle-train --drill train.py --batch-size 32"""

EPILOG = """\
exit codes:
  0            all ranks ended well; of a drill: the script survives all faults
  1            of a drill: it does not
  2            a flag that makes no sense; the message names it and what is accepted
  128 + N      rekindle-train got signal N and ended the ranks, or signal N ended the rank whose failure ended the job
  other        that of the rank whose failure ended the job

environment:
  REKINDLE_JOB_DIR           where checkpoints lie; by default the current directory
  REKINDLE_CHECKPOINT_EVERY  steps between two of them, for scripts that do not say it"""


class UsageInvalid(ValueError):
    """A flag that makes no sense, or not beside another one; the message names it and what is accepted."""


@dataclass(frozen=True)
class Arguments:
    nnodes: int
    nproc_per_node: int
    role: str
    """Of the pod, as the cluster says it; a standby's ends when it is given a rank."""
    pod_uid: str
    node_rank: int
    """Of a standby it says nothing."""
    master_addr: str
    master_port: int
    run_id: str
    standalone: bool
    """No control plane: the launcher starts a manager of its own."""
    start_method: str
    spares: int
    """Processes that wait to take the place of a rank's."""
    max_restarts: int
    """Of all ranks together, from the last checkpoint."""
    stall_seconds: int
    """How long ranks may wait for another one before it is replaced; 0: as long as it takes."""
    log_dir: Path | None
    redirects: int
    """1: standard output goes to a file, 2: standard error does, 3: both."""
    command: tuple[str, ...]
    """What each rank runs."""
    runs_as: str
    """`script`, `module`, or `program` (--no-python)."""
    drill: Drill | None = None

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def is_standby(self) -> bool:
        """Its processes wait, loaded, until the pod is given a rank."""
        return self.role == names.STANDBY


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Arguments:
    given = _parser().parse_args(argv)
    if (drill := _drill(given)) is not None:
        environment = {}  # a drill takes no part in a job around it
    standalone = given.standalone or not environment.get(names.JOB_ID)
    nnodes = _nodes(given.nnodes)
    role = environment.get(names.POD_ROLE) or names.WORKER
    _check(given, nnodes, standalone)
    if role == names.STANDBY:
        _check_standby(given, standalone)
    addr, port = _meeting_point(given, environment)
    return Arguments(
        nnodes=nnodes,
        nproc_per_node=_processes(given.nproc_per_node or ("1" if drill is None else str(options.RANKS))),
        role=role,
        pod_uid=environment.get(names.POD_UID, ""),
        node_rank=0 if role == names.STANDBY else _node_rank(given.node_rank, nnodes, environment),
        master_addr=addr,
        master_port=port,
        run_id=given.rdzv_id or environment.get(names.JOB_ID) or "none",
        standalone=standalone,
        start_method=given.start_method,
        spares=_count("--spares", given.spares),
        max_restarts=_count("--max-restarts", given.max_restarts),
        stall_seconds=_count("--stall-seconds", given.stall_seconds),
        log_dir=Path(given.log_dir).absolute() if given.log_dir else None,
        redirects=_redirects(given),
        command=(given.training_script, *given.training_script_args),
        runs_as="module" if given.module else "program" if given.no_python else "script",
        drill=drill,
    )


def _drill(given: argparse.Namespace) -> Drill | None:
    try:
        return options.read(given)
    except ValueError as error:
        raise UsageInvalid(str(error)) from None


def _check(given: argparse.Namespace, nnodes: int, standalone: bool) -> None:
    if given.module and given.no_python:
        raise UsageInvalid("--module and --no-python contradict each other: give one of them")
    if given.no_python and given.start_method == "fork":
        raise UsageInvalid("--no-python and --start-method fork contradict each other: only a Python script can be forked")
    if standalone and nnodes != 1:
        reason = "--standalone" if given.standalone else f"a job without {names.JOB_ID}"
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
        raise UsageInvalid(f"{role}: only a control plane gives a standby its rank, and this job has none ({names.JOB_ID})")
    if given.no_python:
        raise UsageInvalid(f"{role} and --no-python contradict each other: a standby runs a Python script ahead")


def _nodes(text: str) -> int:
    """`2` or, as torchrun writes it, `2:2`; how many there are is for the cluster to change, not for the launcher."""
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


def _count(flag: str, text: str) -> int:
    if not text.isdigit():
        raise UsageInvalid(f"{flag} {text}: accepted is a whole number from 0")
    return int(text)


def _devices(kind: str) -> int:
    """As torchrun counts: `auto` is the accelerators if there are any, else the processors."""
    if kind != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count()
        if hasattr(torch, "npu") and torch.npu.is_available():
            return int(torch.npu.device_count())
        if kind == "gpu":
            raise UsageInvalid("--nproc-per-node gpu: there is no accelerator here; accepted are a whole number, cpu and auto")
    return os.cpu_count() or 1


def _node_rank(text: str | None, nnodes: int, environment: Mapping[str, str]) -> int:
    source = "--node-rank" if text is not None else names.POD_RANK
    text = text if text is not None else environment.get(names.POD_RANK) or "0"
    if not text.isdigit() or int(text) >= nnodes:
        raise UsageInvalid(f"{source} {text}: accepted is a whole number from 0 to {nnodes - 1} (--nnodes {nnodes})")
    return int(text)


def _meeting_point(given: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, int]:
    """Where the manager listens. The cluster's word goes before flags that a start command brought along from torchrun."""
    host, _, port = given.rdzv_endpoint.rpartition(":") if ":" in given.rdzv_endpoint else (given.rdzv_endpoint, "", "")
    host = environment.get(names.MASTER_ADDR) or host or given.master_addr
    port = environment.get(names.MASTER_PORT) or port or given.master_port
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageInvalid(f"--master-port {port}: accepted is a port from 1 to 65535")
    return host, int(port)


def _redirects(given: argparse.Namespace) -> int:
    if given.redirects not in ("0", "1", "2", "3"):
        raise UsageInvalid(f"--redirects {given.redirects}: accepted are 0 (none), 1 (stdout), 2 (stderr) and 3 (both)")
    if given.redirects != "0" and not given.log_dir:
        raise UsageInvalid(f"--redirects {given.redirects} needs --log-dir, the folder to write to")
    return int(given.redirects)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # the caller prints it, as every other usage error
        flags = " ".join(sorted(option for action in self._actions for option in action.option_strings if "_" not in option))
        raise UsageInvalid(f"{message}; accepted flags are {flags}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rekindle-train",
        usage="%(prog)s [flags] training_script [arguments of the script]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    _flag(parser, "--nnodes", metavar="N", default="1", help="pods of the job (1)")
    _flag(parser, "--nproc-per-node", metavar="N", help="ranks in each pod: a number, cpu, gpu or auto (1; in a drill 2)")
    _flag(parser, "--node-rank", metavar="N", help=f"rank of this pod; by default {names.POD_RANK}, which the cluster sets")
    _flag(
        parser,
        "--master-addr",
        metavar="HOST",
        default="127.0.0.1",
        help="where the job's manager listens; the environment goes before it (127.0.0.1)",
    )
    _flag(
        parser,
        "--master-port",
        metavar="PORT",
        default=str(names.DEFAULT_MASTER_PORT),
        help=f"and on which port ({names.DEFAULT_MASTER_PORT})",
    )
    _flag(
        parser,
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        default="",
        help="the same as --master-addr and --master-port, HOST[:PORT]",
    )
    _flag(parser, "--rdzv-backend", default="", help="static, c10d, rekindle: ranks meet in the job's manager")
    _flag(parser, "--rdzv-id", default="", help="name of the run; by default the job's id")
    _flag(parser, "--rdzv-conf", default="", help="accepted and not used: there is one rendezvous")
    _flag(
        parser,
        "--max-restarts",
        metavar="N",
        default="0",
        help="standalone: how often all ranks begin again at the last checkpoint (0)",
    )
    _flag(
        parser,
        "--stall-seconds",
        metavar="N",
        default="300",
        help="standalone: a rank for which the others wait longer is replaced; 0: never (300)",
    )
    _flag(
        parser,
        "--spares",
        metavar="N",
        default="0",
        help="processes that wait, loaded, to take the place of a rank's (0)",
    )
    _flag(parser, "--monitor-interval", default="0.1", help="accepted and not used: ends of processes are noticed at once")
    _flag(
        parser,
        "--start-method",
        default="spawn",
        choices=("spawn", "fork"),
        metavar="METHOD",
        help="spawn, or fork: load torch once for all ranks (spawn)",
    )
    _flag(parser, "--log-dir", metavar="DIR", help="folder for redirected output")
    _flag(
        parser,
        "--redirects",
        metavar="N",
        short="-r",
        default="0",
        help="0 none, 1 stdout, 2 stderr, 3 both, to files in --log-dir",
    )
    _flag(parser, "--tee", metavar="N", short="-t", default="0", help="0 only")
    _flag(parser, "--local-addr", default="", help="accepted and not used")
    _drill_flags(parser)
    parser.add_argument("--standalone", action="store_true", help="one machine, no control plane: starts a manager of its own")
    parser.add_argument("-m", "--module", action="store_true", help="run the training script as a module, like python -m")
    parser.add_argument("--no-python", action="store_true", help="run the training script as a program")
    parser.add_argument("--no_python", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("training_script", help="a script; with -m a module, with --no-python a program")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return parser


def _drill_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drill", action="store_true", help="try what of the script survives: run it with one fault after the other"
    )
    _flag(parser, "--drill-steps", metavar="N", help=f"steps of each run of a drill ({options.STEPS})")
    _flag(parser, "--drill-cases", metavar="A,B", help=f"faults to try: {', '.join(options.CASES)} (all)")
    _flag(parser, "--drill-seconds", metavar="N", help=f"limit of the run without a fault ({options.SECONDS})")
    _flag(parser, "--drill-keep", metavar="DIR", help="an empty folder in which all runs are kept")
    _flag(parser, "--drill-output", metavar="FORMAT", help="text, or json: one object as the last line of standard output (text)")


def _flag(parser: argparse.ArgumentParser, name: str, short: str = "", **options: object) -> None:
    """torchrun takes every flag with dashes and with underscores."""
    underscored = "--" + name[2:].replace("-", "_")
    spellings = [spelling for spelling in (short, name) if spelling]
    flag = parser.add_argument(*spellings, **{"metavar": "..."} | options)  # type: ignore[arg-type]
    if underscored != name:
        parser.add_argument(underscored, dest=flag.dest, default=argparse.SUPPRESS, choices=flag.choices, help=argparse.SUPPRESS)
