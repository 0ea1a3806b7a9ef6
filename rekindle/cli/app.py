"""The command `rekindle`. Each command is an async call to Temporal or to the local cluster; exit codes are for scripts."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import NoReturn

from cyclopts import App, CycloptsError
from cyclopts.completion.detect import ShellDetectionError

from rekindle import __version__
from rekindle.cli import exits
from rekindle.cli.exits import Exit
from rekindle.cli.terminal import complain, console, problems
from rekindle.errors import BadInput, RekindleError
from rekindle.interpreter import run_and_end

COMMANDS = {
    "rekindle.cli.dev:dev": "Start Temporal, control worker, gateway, watcher and a cluster, until Ctrl-C.",
    "rekindle.cli.jobs:submit": "Start the jobs that FILE describes, one in each document.",
    "rekindle.cli.jobs:jobs": (
        "List the registered jobs. STEP is one that training has told of, when it began or came back; it is further by now."
    ),
    "rekindle.cli.jobs:show": "Show JOB (name or id): its policy, and its incidents as post-mortems.",
    "rekindle.cli.explain:explain": (
        "Explain JOB or NODE: what is seen, which rule decides about it, since when, and when it counts."
    ),
    "rekindle.cli.doctor:doctor": "Examine the installation link by link, and say how to mend what is broken.",
    "rekindle.cli.uninstall:uninstall": (
        "Remove what an installation has left on jobs, pods and nodes of a Kubernetes cluster. Jobs train on."
    ),
    "rekindle.cli.check:check": (
        "Check FILE before it is applied: training jobs of any kind, or rules (a file, or a ready-made set: plain, nvidia, "
        "ascend)."
    ),
    "rekindle.cli.check:render": (
        "Show what the jobs of FILE would be given: environment variables, and the modes that they can have."
    ),
    "rekindle.cli.check:parameters": "List the parameters that a job may carry, with where they stand and what is accepted.",
    "rekindle.cli.jobs:history": (
        "Show the incidents of JOB (name or id) as post-mortems, also when it has ended: the newest job of its name."
    ),
    "rekindle.cli.incident:incident": (
        "Show the newest incident of JOB (name or id), or the one with this number, as a picture: who did what, and when."
    ),
    "rekindle.cli.report:report": (
        "Report what the time of JOB (name or id) was spent on, and what faults have cost; without JOB, of all jobs."
    ),
    "rekindle.cli.top:top": (
        "Show all jobs at a glance: state, step, step time, goodput of the last hour, recoveries, standbys and downgrades."
    ),
    "rekindle.cli.logs:logs": "Print what the pods of JOB (name or id) wrote, first those that are gone, the oldest first.",
    "rekindle.cli.jobs:delete": "Delete JOB (name or id) and its pods.",
    "rekindle.cli.recover:hot_switch": "Move a pod of JOB (name or id) to a spare node while training pauses for a moment.",
    "rekindle.cli.recover:recover": (
        "Recover what is faulty of JOB by the cheapest mode that is possible now; refused where nothing is faulty."
    ),
    "rekindle.cli.recover:reschedule": (
        "Stop all pods of JOB and start them again on healthy nodes; training resumes from its last checkpoint."
    ),
    "rekindle.cli.recover:scale": (
        "Let JOB (name or id) train with fewer pods, or with more of those that it was started with; it keeps that size."
    ),
    "rekindle.cli.stress:stress_test": (
        "Test devices of JOB (name or id) while training pauses. Nodes with faults are isolated, and training goes "
        "on without them."
    ),
    "rekindle.cli.drain:drain": (
        "Drain NODE: it is cordoned, and the ranks on it move to other nodes while training pauses for a moment."
    ),
    "rekindle.cli.recover:cancel": (
        "Cancel what was asked for on JOB (name or id). A recovery that must not stop half-way goes on to its end."
    ),
    "rekindle.cli.decide:approve": (
        "Approve the mode of JOB (name or id) that waits for it (annotation rekindle.io/approval), or that a storm holds."
    ),
    "rekindle.cli.decide:deny": (
        "Deny the mode of JOB (name or id) that waits for approval: the next one is tried, and a slow node is left alone."
    ),
    "rekindle.cli.decide:abort": (
        "Abort the recovery of JOB (name or id), also one that a fault began: its mode is cancelled, and no other follows."
    ),
    "rekindle.cli.decide:retry": ("Recover JOB (name or id) again, whose recovery was given up, denied or aborted."),
    "rekindle.cli.links:failover": (
        "Move devices of JOB (name or id) to their backup links for a maintenance; training pauses for a moment."
    ),
    "rekindle.cli.links:switchback": (
        "Move devices that were failed over back to their first links: those of a job, or of one MAINTENANCE."
    ),
    "rekindle.cli.links:maintenances": (
        "List maintenances of links: which devices of which job are on their backup links, and since when."
    ),
}
"""Functions that are loaded when they are called, each with the first line of its text. `rekindle --help` loads none of them."""

GROUPS = {
    "demo": ("rekindle.cli.demos.group:demo_app", "Watch a recovery of a real training job on this machine."),
    "fault": ("rekindle.cli.jobs:fault_app", "Make a node sub-healthy or lose it, and make it well again."),
    "nodes": (
        "rekindle.cli.jobs:nodes_app",
        "List nodes, say of one that it is sick or well, and release one that is isolated.",
    ),
    "plan": (
        "rekindle.cli.plans:plan_app",
        "Upgrade a switch leaf by leaf, while the jobs on it train on their backup links.",
    ),
    "policy": ("rekindle.cli.recover:policy_app", "Show a job's sub-health policy, and lift its downgrade."),
    "versions": (
        "rekindle.cli.versions:versions_app",
        "Show the versions of the control worker, and make another one current.",
    ),
}
"""Commands with commands of their own, each with its text."""

app = App(
    name="rekindle",
    version=__version__,
    help=f"""Brings training jobs back after a fault, by the cheapest means that works.

Start everything on this machine with `rekindle dev`, or watch it work with `rekindle demo hot-switch`.

{exits.WORDS}""",
)
for function, summary in COMMANDS.items():
    app.command(function, help=summary)
for name, (group, text) in GROUPS.items():
    app.command(group, name=name, help=text)


def load(words: Sequence[str]) -> None:
    """Loads the modules of the command that these words call. The page of a function then has its whole text."""
    _, called, _ = app.parse_commands([word for word in words if word not in app.help_flags])
    for command in called[1:2]:
        if command.name[0] not in GROUPS:
            command.help = None


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
    load(command)
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
        load(arguments)
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
