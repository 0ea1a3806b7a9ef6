"""`rekindle demo`: a real training job, recovered before your eyes."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rekindle.cli.demos.link_failover import LinkFailover, LinkFailoverScenario
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.demos.scenario import RANKS, Asked, Options, Scenario, Step
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.exits import Exit
from rekindle.cli.interrupts import interruptible
from rekindle.cli.output import Format, print_json
from rekindle.cli.stack import ClusterKind, Machine, running
from rekindle.cli.terminal import console, problems
from rekindle.cli.values import Whole
from rekindle.errors import BadInput, RekindleError
from rekindle.model.mode import Mode

LOCAL = ClusterKind.LOCAL

demo_app = App(name="demo")


def flag(text: str) -> Parameter:
    return Parameter(negative="", help=text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """Options that all demos have."""

    seed: Annotated[Whole, Parameter(help="Of the model and its data.")] = 7
    steps: Annotated[Whole, Parameter(help="Training steps.")] = 200
    pods: Annotated[Whole, Parameter(help="2 or 4; the 4 ranks are spread over them.")] = 2
    at_step: Annotated[Whole, Parameter(help="When it happens.")] = 15
    cluster: Annotated[ClusterKind, Parameter(help="kubernetes: a real control plane, with kubelets that run processes.")] = LOCAL
    temporal: Annotated[str, Parameter(help="host:port of a Temporal service to use instead of a server of its own.")] = ""
    output: Annotated[Format, Parameter(help="text for people; json: one object as the last line.")] = Format.TEXT

    @property
    def options(self) -> dict[str, Any]:
        return {"seed": self.seed, "steps": self.steps, "pods": self.pods, "at_step": self.at_step}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Struck:
    """Options that select the affected ranks."""

    rank: Annotated[Whole, Parameter(help="The rank that the fault affects, 0 to 3.")] = 2
    ranks_at_once: Annotated[Whole, Parameter(help="1, or 2: another one at the same time, which is in another pod.")] = 1


NO_SPARE_PROCESS = "No loaded process waits for the rank: where its own has ended, one is started."
STANDBY = flag("A pod stands by on a node of its own, with everything loaded but the state, and takes the ranks over.")

KILL = "kill: SIGKILL to the rank's process"
KILL_POD = "kill: SIGKILL to all processes of the rank's pod, its launcher among them, so that the pod fails"
OTHERS = """freeze: SIGSTOP to the rank's process; exception: the rank raises RuntimeError in its next step; memory: it raises
MemoryError there."""


@demo_app.command(name="hot-switch")
async def hot_switch(
    *,
    common: Common = Common(),
    pod_rank: Annotated[Whole, Parameter(help="The pod whose node turns sub-healthy.")] = 1,
    no_spare: Annotated[bool, flag("There is no free node: the sub-health is ignored from then on.")] = False,
    standby: Annotated[bool, STANDBY] = False,
    backup_fails: Annotated[bool, flag("The backup pod dies while it loads.")] = False,
    pause_hangs: Annotated[bool, flag("The training side never pauses.")] = False,
    resume_fails: Annotated[bool, flag("The training side cannot resume.")] = False,
) -> int:
    """Train a small GPT on 4 ranks, let a node turn sub-healthy, move its pod, and compare with an undisturbed run.

    Example: rekindle demo hot-switch --pods 4 --pod-rank 0
    """
    options = SubHealth(
        **common.options,
        pod_rank=pod_rank,
        no_spare=no_spare,
        standby=standby,
        backup_fails=backup_fails,
        pause_hangs=pause_hangs,
        resume_fails=resume_fails,
    )
    check(options)
    check_pod_rank(options)
    if sum([no_spare, backup_fails, pause_hangs, resume_fails]) > 1:
        raise BadInput("--no-spare, --backup-fails, --pause-hangs, --resume-fails: use one of them at a time")
    return await run_demo(options, HotSwitchScenario, "hot switch", common)


@demo_app.command(name="in-place")
async def in_place(
    *,
    common: Common = Common(),
    struck: Struck = Struck(),
    fault: Annotated[Strike, Parameter(help=f"{KILL}; {OTHERS}")] = Strike.KILL,
    no_spare: Annotated[bool, flag(NO_SPARE_PROCESS)] = False,
) -> int:
    """Train a small GPT on 4 ranks, strike one, replace its process inside its pod, and compare with an undisturbed run.

    In each pod a loaded process waits for such a rank. The job's owner allows no retry, so that also a step that just failed is
    recovered in place: by its own process, which lives.

    Example: rekindle demo in-place --fault freeze --rank 0
    """
    return await _strike(Mode.IN_PLACE, fault, struck, common, no_spare=no_spare)


@demo_app.command(name="online-retry")
async def online_retry(
    *,
    common: Common = Common(),
    struck: Struck = Struck(),
    fault: Annotated[Strike, Parameter(help=f"{KILL}; {OTHERS}")] = Strike.MEMORY,
    no_spare: Annotated[bool, flag(NO_SPARE_PROCESS)] = False,
) -> int:
    """Train a small GPT on 4 ranks, let a step fail for want of memory, repeat it, and compare with an undisturbed run.

    Only a fault of memory may go away by that: any other one is recovered in place, which is the next mode.

    Example: rekindle demo online-retry --ranks-at-once 2
    """
    return await _strike(Mode.ONLINE_RETRY, fault, struck, common, no_spare=no_spare)


@demo_app.command(name="process-rescheduling")
async def process_rescheduling(
    *,
    common: Common = Common(),
    struck: Struck = Struck(),
    fault: Annotated[Strike, Parameter(help=f"{KILL_POD}; {OTHERS}")] = Strike.KILL,
    no_spare: Annotated[bool, flag("No node takes another pod, also not that of the lost one: the job is rescheduled.")] = False,
    standby: Annotated[bool, STANDBY] = False,
) -> int:
    """Train a small GPT on 4 ranks, end a pod, replace it on another node, and compare with an undisturbed run.

    The job's owner allows no cheaper mode: also where only a rank is affected, its pod is replaced.

    Example: rekindle demo process-rescheduling --pods 4 --ranks-at-once 2
    """
    _check_left(struck, common)
    return await _strike(Mode.PROCESS_RESCHEDULING, fault, struck, common, no_spare=no_spare, standby=standby)


@demo_app.command(name="dying-gasp")
async def dying_gasp(*, common: Common = Common(), struck: Struck = Struck()) -> int:
    """Train a small GPT on 4 ranks, end a pod, restart the job without a loss, and compare with an undisturbed run.

    The job's owner allows no cheaper mode. The ranks of the other pods save the step at which training stands, and the
    restarted job goes on from it.

    Example: rekindle demo dying-gasp --pods 4
    """
    _check_left(struck, common)
    return await _strike(Mode.DYING_GASP, Strike.KILL, struck, common)


@demo_app.command(name="pod-rescheduling")
async def pod_rescheduling(*, common: Common = Common(), struck: Struck = Struck()) -> int:
    """Train a small GPT on 4 ranks, end a pod, replace it alone, start all other processes again, and compare.

    The job's owner allows no cheaper mode. The ranks of the other pods save the step at which training stands. Their pods stay,
    with other processes, and all ranks go on from that step.

    Example: rekindle demo pod-rescheduling --pods 4
    """
    _check_left(struck, common)
    return await _strike(Mode.POD_RESCHEDULING, Strike.KILL, struck, common)


@demo_app.command(name="ladder")
async def ladder(*, common: Common = Common(), struck: Struck = Struck()) -> int:
    """Train a small GPT on 4 ranks, let a fault come back in each mode until the job is restarted, and compare.

    A rank raises MemoryError each time that it does one step. Repeating the step fails, and so does its process in its pod. No
    node takes another pod, also not when its state is saved. So all pods start again from that state: no step is lost.

    Example: rekindle demo ladder --rank 1
    """
    return await _strike(Mode.ONLINE_RETRY, Strike.MEMORY, struck, common, falls=True)


@demo_app.command(name="link-failover")
async def link_failover(*, common: Common = Common(), struck: Struck = Struck()) -> int:
    """Train a small GPT on 4 ranks, maintain the switch of its nodes' first links, and compare with an undisturbed run.

    Ranks move to their backup links, the first ones are pulled, a rank is killed and replaced inside its pod, the first links are
    plugged in again, and ranks return to them. Nodes are network namespaces with two links each, for which most machines ask no
    rights.

    Example: rekindle demo link-failover --rank 0
    """
    if common.cluster is not LOCAL:
        raise BadInput(f"--cluster: {common.cluster} is not accepted, nodes have links of their own with --cluster local alone")
    options = LinkFailover(**common.options, rank=struck.rank, ranks_at_once=struck.ranks_at_once)
    check(options)
    _check_struck(struck)
    return await run_demo(options, LinkFailoverScenario, "link failover", common)


def _check_left(struck: Struck, common: Common) -> None:
    """Raises BadInput if no pod would be left."""
    if struck.ranks_at_once == 2 and common.pods == 2:
        raise BadInput("--ranks-at-once: 2 is not accepted with --pods 2, where no pod would be left; use --pods 4")


async def _strike(mode: Mode, fault: Strike, struck: Struck, common: Common, **more: bool) -> int:
    options = ProcessFaults(
        **common.options, mode=mode, fault=fault, rank=struck.rank, ranks_at_once=struck.ranks_at_once, **more
    )
    check(options)
    _check_struck(struck)
    return await run_demo(options, ProcessFaultScenario, "ladder" if options.falls else mode.value, common)


async def run_demo(options: Asked, scenario: type[Scenario[Asked]], title: str, common: Common) -> int:
    directory = Path(tempfile.mkdtemp(prefix="rekindle-demo-"))
    output = common.output
    with interruptible(), _kept_when_it_fails(directory), _progress(output, options.steps) as tell:
        machine = Machine(options.nodes, RANKS // options.pods, common.cluster, options.links)
        async with running(directory, machine, temporal=common.temporal, tell=lambda text: tell(Step(text=text))) as stack:
            result = await scenario(options, stack, directory, tell).run()
            _show(result, title, output)
            await _wait_for_a_key(result, output)
    if options.is_met_by(result):
        shutil.rmtree(directory, ignore_errors=True)
        return Exit.DONE
    expected = ", then ".join(f"{mode} {outcome}" for mode, outcome in options.expected)
    problems.print(f"not as expected ({expected}; equal parameters); logs are kept in {directory}", soft_wrap=True)
    return Exit.OTHERWISE


@contextlib.contextmanager
def _kept_when_it_fails(directory: Path) -> Iterator[None]:
    """Keeps the directory of a failed demo, so that its logs can be read.

    Deletes it if the demo was interrupted, or the input was invalid and nothing was started.
    """
    try:
        yield
    except (BadInput, asyncio.CancelledError):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    except RekindleError:
        problems.print(f"logs are kept in {directory}", soft_wrap=True)
        raise


def check(options: Options) -> None:
    """Raises BadInput for invalid options, before anything starts."""
    if options.no_spare and options.standby:
        raise BadInput("--no-spare, --standby: use one of them, a standby is on a spare node")
    if options.pods not in (2, 4):
        raise BadInput(f"--pods: {options.pods} is not accepted, use 2 or 4")
    if options.steps < 20:
        raise BadInput(f"--steps: {options.steps} is not accepted, use 20 or more")
    latest = options.steps - options.steps_after
    if not 1 <= options.at_step <= latest:
        accepted = f"use 1 to {latest}" if latest > 0 else f"which needs --steps {options.steps_after + options.at_step} or more"
        raise BadInput(f"--at-step: {options.at_step} is not accepted with --steps {options.steps}, {accepted}")
    if not 0 <= options.seed < 2**32:
        raise BadInput(f"--seed: {options.seed} is not accepted, use 0 to {2**32 - 1}")


def check_pod_rank(options: SubHealth) -> None:
    if not 0 <= options.pod_rank < options.pods:
        raise BadInput(f"--pod-rank: {options.pod_rank} is not accepted, use 0 to {options.pods - 1}")


def check_rank(rank: int) -> None:
    if not 0 <= rank < RANKS:
        raise BadInput(f"--rank: {rank} is not accepted, use 0 to {RANKS - 1}")


def _check_struck(struck: Struck) -> None:
    check_rank(struck.rank)
    if struck.ranks_at_once not in (1, 2):
        raise BadInput(f"--ranks-at-once: {struck.ranks_at_once} is not accepted, use 1 or 2")


@contextlib.contextmanager
def _progress(output: Format, steps: int) -> Iterator[Callable[[Step], None]]:
    """Yields a function that shows progress: a live line on a terminal, plain lines in a log.

    With JSON output it writes to stderr.
    """
    if output is Format.TEXT and console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=steps)
            yield lambda step: bar.update(task, description=step.text, completed=step.step)
        return
    last = ""

    def line(step: Step) -> None:
        nonlocal last
        words = step.text.split(", step ")[0]
        if words != last:
            last = words
            sys.stderr.write(f"{step.text}\n")
            sys.stderr.flush()

    yield line


def _show(result: dict[str, Any], title: str, output: Format) -> None:
    if output is Format.JSON:
        return
    table = Table(box=None, show_header=False)
    table.add_row("verdict", f"[bold]{result['verdict']}[/bold]: {escape(result['reason'])}")
    table.add_row("ladder", " -> ".join(f"{step['mode']}: {step['verdict']}" for step in result["ladder"]))
    equal = "[green]equal bit for bit[/green]" if result["parameters_equal"] else "[red]DIFFERENT[/red]"
    table.add_row("final parameters", f"{equal}, compared with an undisturbed run on {RANKS} ranks")
    table.add_row("steps lost", str(result["steps_lost"]))
    table.add_row("pause of training", f"{result['pause_seconds'] * 1000:.0f} ms")
    table.add_row("goodput", f"{result['goodput']:.1%} of {sum(result['seconds'].values()):.1f} s, start-up included")
    if "fault_to_step_seconds" in result:
        table.add_row("fault to detection", f"{result['detection_seconds'] * 1000:.0f} ms")
        table.add_row("fault to next step", f"{result['fault_to_step_seconds']:.2f} s")
    asked = "links_before" in result
    if result["first_order_seconds"] is not None:
        since = "decision" if asked else "fault seen"
        table.add_row(f"{since} to first order", f"{result['first_order_seconds'] * 1000:.0f} ms")
    table.add_row("all decisions to verdicts" if asked else "fault seen to verdict", f"{result['total_seconds']:.2f} s")
    for key, show in (("links_before", _show_links), ("replicas", _show_sizes), ("drained", _show_drained)):
        if key in result:
            show(table, result)
    for rank in result["switched"]:
        before, after = rank["before"], rank["after"]
        table.add_row(f"rank {rank['rank']}", f"{_place(before)} -> {_place(after)}")
    if "fault_to_step_seconds" not in result:
        table.add_row("sub-health policy", result["policy_after"])
    table.add_row("cluster", result["cluster"])
    table.add_row("workflow", result["workflow_id"])
    console.print(Panel(table, title=title, border_style="green" if result["parameters_equal"] else "red"))
    console.print(f"Temporal UI: [link]{result['temporal_ui']}[/link]")


def _show_links(table: Table, result: dict[str, Any]) -> None:
    pauses = zip(("to the backup links", "and back"), result["switch_seconds"], result["beyond_switch_seconds"], strict=False)
    said = [f"{way} {pause * 1000:.0f} ms, {beyond * 1000:.0f} of them beyond the switch itself" for way, pause, beyond in pauses]
    table.add_row("pause of each switch", "; ".join(said))
    for when in ("before", "between", "after"):
        links = result[f"links_{when}"].items()
        carried = [f"{name} {link['bytes'] / 1e6:.2f} MB{'' if link['up'] else ' (pulled)'}" for name, link in links]
        table.add_row(f"links {when}", ", ".join(carried))
    table.add_row("maintenance", result["maintenance"])


def _show_drained(table: Table, result: dict[str, Any]) -> None:
    table.add_row("drained", f"{', '.join(result['nodes'])}{'' if result['drained'] else ': no, it waits for a free node'}")


def _show_sizes(table: Table, result: dict[str, Any]) -> None:
    sizes = [f"{one['replicas']} from {one['since']:.1f} s to {one['until']:.1f} s" for one in result["replicas"]]
    table.add_row("replicas", ", ".join(sizes))
    for name, seconds in (("fault to next step", "fault_to_step_each"), ("pause when replicas came back", "growth_pauses")):
        table.add_row(name, ", ".join(f"{one * 1000:.0f} ms" for one in result[seconds]))


def _place(place: dict[str, Any]) -> str:
    return f"{place['pod']} on {place['node']} (pid {place['pid']})"


async def _wait_for_a_key(result: dict[str, Any], output: Format) -> None:
    """Keeps the Temporal UI running until a key is pressed, if there is a terminal. Ctrl-C works meanwhile."""
    if output is Format.JSON:
        print_json(result)
    elif sys.stdin.isatty() and console.is_terminal:
        console.print("Enter ends the demo and its Temporal UI")
        typed, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(sys.stdin, typed.set)
        try:
            await typed.wait()
        finally:
            loop.remove_reader(sys.stdin)
        sys.stdin.readline()
