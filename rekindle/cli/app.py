"""The command `rekindle`. Each command is an async call to Temporal or to the local cluster; exit codes are for scripts."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import NoReturn

from cyclopts import App, CycloptsError
from cyclopts.completion.detect import ShellDetectionError

from rekindle import __version__
from rekindle.cli import exits
from rekindle.cli.demos import device_check, node_drain
from rekindle.cli.demos.commands import demo_app
from rekindle.cli.dev import dev
from rekindle.cli.drain import drain
from rekindle.cli.exits import Exit
from rekindle.cli.explain import check, explain
from rekindle.cli.jobs import delete, fault_app, history, jobs, nodes_app, show, submit
from rekindle.cli.links import failover, maintenances, switchback
from rekindle.cli.logs import logs
from rekindle.cli.output import complain, console, problems
from rekindle.cli.plans import plan_app
from rekindle.cli.recover import cancel, hot_switch, policy_app, recover, reschedule
from rekindle.cli.stress import stress_test
from rekindle.cli.versions import versions_app
from rekindle.errors import BadInput, RekindleError
from rekindle.interpreter import run_and_end

app = App(
    name="rekindle",
    version=__version__,
    help=f"""Brings training jobs back after a fault, by the cheapest means that works.

Start everything on this machine with `rekindle dev`, or watch it work with `rekindle demo hot-switch`.

{exits.WORDS}""",
)
for command in (
    dev,
    submit,
    jobs,
    show,
    explain,
    check,
    history,
    logs,
    delete,
    hot_switch,
    recover,
    reschedule,
    stress_test,
    drain,
    cancel,
    failover,
    switchback,
    maintenances,
):
    app.command(command)
for group in (demo_app, fault_app, nodes_app, plan_app, policy_app, versions_app):
    app.command(group)
demo_app.command(device_check.stress_test, name="stress-test")
demo_app.command(node_drain.drain, name="drain")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(name="--install-completion")
def install_completion(*, shell: Shell | None = None) -> None:
    """Write the file with completions of commands and options, and say how the shell reads it. No other file is changed.

    Args:
        shell: the one that completes; by default the one from which this is called.
    """
    try:
        file = app.install_completion(shell=shell.value if shell else None, add_to_startup=False)
    except ShellDetectionError as error:
        accepted = ", ".join(Shell)
        raise BadInput(f"--shell: which shell completes is not known, accepted are {accepted} (SHELL): {error}") from error
    except OSError as error:
        raise BadInput(f"HOME: completions cannot be written: {error}") from error
    console.print(f"completions are in {file}", soft_wrap=True, highlight=False)
    console.print(f"if your shell does not read them by itself, add to its start-up file: source {file}", soft_wrap=True)


@app.command(name="help")
def show_help(*command: str) -> None:
    """Show what COMMAND does, or what commands there are.

    Example: rekindle help hot-switch
    """
    _, _, unknown = app.parse_commands(command)
    if unknown:
        raise BadInput(f"help: {' '.join(command)!r} is no command; all commands are shown by: rekindle help")
    app.help_print(command)


def main() -> NoReturn:
    """Entry point of the console script."""
    exits.own_output()
    run_and_end(lambda: sys.exit(run(sys.argv[1:])))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    try:
        return _run(arguments)
    except exits.OutputLost as error:
        return exits.lost(error)
    except Exception:  # noqa: BLE001  # a bug of ours, which must not pass for an answer
        sys.excepthook(*sys.exc_info())
        return Exit.BUG


def _run(arguments: Sequence[str]) -> int:
    try:
        result = app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        complain(error)
        problems.print("try --help", style="dim")
        return Exit.BAD_INPUT
    except RekindleError as error:
        complain(error)
        return exits.of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return result if isinstance(result, int) else Exit.DONE
