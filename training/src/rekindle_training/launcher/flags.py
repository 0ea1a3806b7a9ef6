"""Flags of `rekindle-train`: those of torchrun with its defaults, and a few others. Used by `arguments.py`.

Variables of torchrun are read as well (`PET_NNODES` for `--nnodes`).
"""

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence

from rekindle_training import names
from rekindle_training.launcher import drill_options

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
  PET_<FLAG>                 a flag that the command line does not have, as with torchrun
  REKINDLE_JOB_DIR           where checkpoints lie; by default the current directory
  REKINDLE_CHECKPOINT_EVERY  steps between two of them, for scripts that do not say it
  REKINDLE_SNAPSHOT_EVERY    steps between snapshots in memory of shards that one rank alone holds; by default none"""

PREFIX = "PET_"
"""Prefix of torchrun's variables. Each variable stands for the flag of its name."""
REFUSED = {
    "--local-ranks-filter": "use --redirects to write the ranks' output to files",
    "--log-line-prefix-template": "use --redirects to write the ranks' output to files",
    "--duplicate-stdout-filters": "use --redirects to write the ranks' output to files",
    "--duplicate-stderr-filters": "use --redirects to write the ranks' output to files",
    "--logs-specs": "use --redirects to write the ranks' output to files",
    "--numa-binding": "bind processes in the training script, or start it by numactl with --no-python",
    "--virtual-local-rank": "the training script takes the device of its LOCAL_RANK",
}
"""Flags of torchrun that cannot be honoured, and what to do instead."""

PLACES = ("master_addr", "master_port", "rdzv_endpoint")
"""Names of the flags in a namespace. Controllers of others append variables that mean the same, and a command line goes before
those."""


class UsageInvalid(ValueError):
    """A flag that makes no sense, or not beside another one; the message names it and what is accepted."""


class _Parser(argparse.ArgumentParser):
    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Actions of the flags by their long, documented names."""
        spelt = {flag: action for action in self._actions for flag in action.option_strings}
        return {flag: action for flag, action in spelt.items() if flag.startswith("--") and "_" not in flag}

    def error(self, message: str) -> None:  # type: ignore[override]  # the caller prints it, as every other usage error
        message = message.removesuffix(", training_script_args")  # a script without arguments is accepted
        if not message.startswith("unrecognized"):
            raise UsageInvalid(f"{message}; rekindle-train --help explains the flags")
        accepted = sorted(self.flags.keys() - REFUSED.keys())
        alike = difflib.get_close_matches(message.split()[-1].partition("=")[0], accepted, n=1, cutoff=0.8)
        meant = f", did you mean {alike[0]}?" if alike else f"; accepted flags are {' '.join(accepted)}"
        raise UsageInvalid(message + meant)


def read(argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """Returns the flags of a command line, and of the environment where the command line does not have them. `typed` has those of
    `PLACES` that the command line itself has; None: it does not.

    Raises:
        UsageInvalid: a flag that there is not, or without its value, or one of `REFUSED`.
    """
    parser = _parser()
    typed = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(PLACES)))
    given = parser.parse_args([*_of_environment(parser, environment), *argv])
    given.typed = argparse.Namespace(**{place: getattr(typed, place) for place in PLACES})
    for flag, instead in REFUSED.items():
        if getattr(given, flag[2:].replace("-", "_")):
            raise UsageInvalid(f"{flag} is not accepted: {instead}")
    return given


def from_environment(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables that stand for flags, with their values."""
    return [f"{name}={value}" for name, value in _variables(_parser(), environment).items()]


def _of_environment(parser: _Parser, environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in _variables(parser, environment).items():
        flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
        if parser.flags[flag].nargs != 0:
            yield f"{flag}={value}"
        elif value != "0":
            yield flag


def _variables(parser: _Parser, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's variables that are set. The pod's rank is left out: the cluster has its own variable for it."""
    known = [PREFIX + flag[2:].replace("-", "_").upper() for flag in parser.flags if flag not in ("--help", "--node-rank")]
    return {name: environment[name] for name in known if environment.get(name)}


def _parser() -> _Parser:
    parser = _Parser(
        prog="rekindle-train",
        usage="%(prog)s [flags] training_script [arguments of the script]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    _add_places(parser)
    _add_ends(parser)
    _add_processes(parser)
    _add_drill(parser)
    _add_unused(parser)
    parser.add_argument("training_script", help="a script; with -m a module, with --no-python a program")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return parser


def _add_places(parser: argparse.ArgumentParser) -> None:
    _switch(parser, "--standalone", "one machine, no control plane: starts a manager of its own")
    _flag(parser, "--nnodes", metavar="N", default="1", help="pods of the job (1)")
    _flag(parser, "--nproc-per-node", metavar="N", help="ranks in each pod: a number, cpu, gpu or auto (1; in a drill 2)")
    _flag(
        parser,
        "--node-rank",
        metavar="N",
        help=f"rank of this pod; by default {names.POD_RANK}, or what other controllers set:\n"
        f"PET_NODE_RANK, NODE_RANK, RANK or {names.INDEX}",
    )
    _flag(
        parser,
        "--master-addr",
        metavar="HOST",
        default="127.0.0.1",
        help="where the job's manager listens; by default MASTER_ADDR, which the cluster sets, or 127.0.0.1;\n"
        "standalone it listens on 127.0.0.1, and the name has to be this machine's",
    )
    _flag(
        parser,
        "--master-port",
        metavar="PORT",
        default=str(names.DEFAULT_MASTER_PORT),
        help=f"and on which port; by default {names.DEFAULT_MASTER_PORT}, or MASTER_PORT where MASTER_ADDR counts;\n"
        "standalone it takes a free one",
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


def _add_ends(parser: argparse.ArgumentParser) -> None:
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
        "--grace-seconds",
        also=("--shutdown-timeout",),
        metavar="N",
        help="how long ranks may take to end after SIGTERM before they are killed; by default as long as the\n"
        "pod lives, and 30 s where another rank's failure or a restart ends them",
    )
    _flag(
        parser,
        "--signals-to-handle",
        metavar="NAMES",
        default="SIGTERM,SIGINT,SIGHUP",
        help="signals that are passed on to the ranks and end the pod (SIGTERM,SIGINT,SIGHUP); a second one\nkills the ranks",
    )


def _add_processes(parser: argparse.ArgumentParser) -> None:
    _flag(
        parser,
        "--spares",
        metavar="N",
        default="0",
        help="processes that wait, loaded, to take the place of a rank's (0)",
    )
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
        also=("-r",),
        default="0",
        help="0 none, 1 stdout, 2 stderr, 3 both, to files in --log-dir",
    )
    _flag(parser, "--tee", metavar="N", also=("-t",), default="0", help="0 only")
    _flag(parser, "--role", metavar="NAME", default="default", help="ROLE_NAME of the ranks (default)")
    _switch(parser, "--module", "run the training script as a module, like python -m", "-m")
    _switch(parser, "--no-python", "run the training script as a program")


def _add_drill(parser: argparse.ArgumentParser) -> None:
    _switch(parser, "--drill", "try what of the script survives: run it with one fault after the other")
    _flag(parser, "--drill-steps", metavar="N", help=f"steps of each run of a drill ({drill_options.STEPS})")
    _flag(parser, "--drill-cases", metavar="A,B", help=f"faults to try: {', '.join(drill_options.CASES)} (all)")
    _flag(parser, "--drill-seconds", metavar="N", help=f"limit of the run without a fault ({drill_options.SECONDS})")
    _flag(parser, "--drill-keep", metavar="DIR", help="an empty folder in which all runs are kept")
    _flag(parser, "--drill-output", metavar="FORMAT", help="text, or json: one object as the last line of standard output (text)")


def _add_unused(parser: argparse.ArgumentParser) -> None:
    _switch(parser, "--run-path", "accepted and not used: a script is run by runpy or by python alike")
    _flag(parser, "--rdzv-conf", default="", help="accepted and not used: there is one rendezvous")
    _flag(parser, "--monitor-interval", default="0.1", help="accepted and not used: ends of processes are noticed at once")
    _flag(parser, "--event-log-handler", default="", help="accepted and not used")
    _flag(parser, "--local-addr", default="", help="accepted and not used")
    for flag in REFUSED:
        if flag == "--virtual-local-rank":
            _switch(parser, flag, argparse.SUPPRESS)
        else:
            _flag(parser, flag, default="", help=argparse.SUPPRESS)


def _flag(parser: argparse.ArgumentParser, name: str, also: tuple[str, ...] = (), **options: object) -> None:
    """torchrun takes every flag with dashes and with underscores."""
    flag = parser.add_argument(name, *also, **{"metavar": "..."} | options)  # type: ignore[arg-type]
    _underscored(parser, flag, name, *also, choices=flag.choices)


def _switch(parser: argparse.ArgumentParser, name: str, help: str, *also: str) -> None:  # noqa: A002  # argparse's name
    flag = parser.add_argument(name, *also, action="store_true", help=help)
    _underscored(parser, flag, name, action="store_true")


def _underscored(parser: argparse.ArgumentParser, flag: argparse.Action, *spellings: str, **options: object) -> None:
    for name in spellings:
        underscored = "--" + name[2:].replace("-", "_")
        if name.startswith("--") and underscored != name:
            parser.add_argument(underscored, dest=flag.dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)  # type: ignore[arg-type]
