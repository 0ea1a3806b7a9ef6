"""Commands that start and cancel recoveries, and show or lift the policy downgrade that they left."""

import asyncio
import getpass
import os
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from cyclopts import App, Parameter

from rekindle.cli.context import control_plane
from rekindle.cli.exits import Exit
from rekindle.cli.follow import follow
from rekindle.cli.output import Format, Output, print_json, show_downgrade, show_incident, show_tested, show_verdict
from rekindle.cli.terminal import console, problems
from rekindle.cli.values import Whole
from rekindle.client import Rekindle
from rekindle.errors import BadInput, Refused, RekindleError, Unavailable
from rekindle.model.fault import FaultKind
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import requests
from rekindle.policy.modes.ladder import as_requested

policy_app = App(name="policy")

DryRun = Annotated[bool, Parameter(negative="", help="Only say what would be answered; nothing is asked for.")]


async def hot_switch(
    job: str,
    *,
    pod_rank: Annotated[Whole, Parameter(help="The pod that moves, by its pod rank, from 0.")],
    force: Annotated[bool, Parameter(negative="", help="Also a pod that was not reported as sub-healthy.")] = False,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Move a pod of JOB (name or id) to a spare node while training pauses for a moment.

    Example: rekindle hot-switch gpt --pod-rank 1
    """
    request = ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=pod_rank, force=force, requested_by=user())
    return await (_judge(request, job, output) if dry_run else _recover(request, job, output))


async def reschedule(
    job: str,
    *,
    save: Annotated[
        bool,
        Parameter(
            negative="--no-save",
            help="Training saves its state first, if it can; --no-save is for training that does not answer.",
        ),
    ] = True,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Stop all pods of JOB and start them again on healthy nodes; training resumes from its last checkpoint.

    Example: rekindle reschedule gpt
    """
    request = ModeRequest(mode=Mode.JOB_RESCHEDULING, save=save, requested_by=user())
    return await (_judge(request, job, output) if dry_run else _recover(request, job, output))


async def scale(
    job: str,
    *,
    replicas: Annotated[Whole, Parameter(help="Number of replicas with which the job trains from now on.")],
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Let JOB (name or id) train with fewer pods, or with more of those that it was started with; it keeps that size.

    Example: rekindle scale gpt --replicas 3
    """
    request = ModeRequest(mode=Mode.SCALING, replicas=replicas, requested_by=user())
    return await (_judge(request, job, output) if dry_run else _recover(request, job, output))


CANCELLED, LOOK = 3.0, 0.1
"""Seconds in which a cancelled recovery usually ends, and seconds between two looks."""


class ProcessMode(StrEnum):
    """Value of `--mode`."""

    ONLINE_RETRY = "online-retry"
    IN_PLACE = "in-place"
    PROCESS_RESCHEDULING = "process-rescheduling"
    DYING_GASP = "dying-gasp"
    ELASTIC_TRAINING = "elastic-training"
    POD_RESCHEDULING = "pod-rescheduling"


async def recover(
    job: str,
    *,
    mode: Annotated[ProcessMode | None, Parameter(help="By default the cheapest that is possible now.")] = None,
    first: Annotated[
        ProcessMode | None,
        Parameter(name="--from", help="The cheapest that is possible from this one on."),
    ] = None,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Recover what is faulty of JOB by the cheapest mode that is possible now; refused where nothing is faulty.

    Example: rekindle recover gpt --dry-run
    """
    if mode and first:
        raise BadInput("--mode, --from: use one of them; --mode is one mode, --from is it or one after it")
    start = Mode[first.name] if first else None
    chosen = Mode[mode.name] if mode else await (await control_plane()).cheapest(job, first=start)
    request = ModeRequest(mode=chosen, cheaper=not first, requested_by=user())
    return await (_judge(request, job, output) if dry_run else _recover(request, job, output))


async def cancel(job: str) -> None:
    """Cancel what was asked for on JOB (name or id). A recovery that must not stop half-way goes on to its end.

    Example: rekindle cancel gpt
    """
    rekindle = await control_plane()
    before = await _last_incident(rekindle, job)
    cancelled = ", ".join(await rekindle.cancel(job))
    if not cancelled:
        raise Refused(f"no requested recovery of {job} is running; a recovery that a fault began is not cancelled")
    words = await _what_came_of_it(rekindle, job, before)
    console.print(f"{'asked to cancel' if words else 'cancelled'}: {cancelled}", soft_wrap=True)
    if words:
        console.print(words, soft_wrap=True, markup=False)


async def _last_incident(rekindle: Rekindle, job: str) -> int:
    """Returns the number of the last incident that has ended; 0 also if no worker answers."""
    try:
        history = (await rekindle.status(job)).state.history
    except Unavailable:
        return 0
    return history[-1].number if history else 0


async def _what_came_of_it(rekindle: Rekindle, job: str, before: int) -> str:
    """Returns what became of a recovery that was to be cancelled; empty: it is cancelled, or that is unknown.

    Args:
        before: number of the last incident that had ended by then.
    """
    runs = None
    try:
        async with asyncio.timeout(CANCELLED):
            while (status := await rekindle.status(job, ended=True)).running:
                runs = status.running
                await asyncio.sleep(LOOK)
    except TimeoutError:
        words = "it undoes what it began, or goes on to its end where it must not stop half-way"
        return f"the {runs} still runs: {words}. Look at it with: rekindle show {job}" if runs else ""
    except RekindleError:
        return ""
    last = status.state.history[-1] if status.state.history else None
    if last is None or last.number <= before or last.verdict is Outcome.CANCELLED:
        return ""
    return f"it had come too far to be stopped half-way, and has ended: {last.verdict}, {last.ladder[-1].reason}"


def user() -> str:
    """Returns the name of the user who runs the command. In an image a user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError: from Python 3.13 on
        return f"user {os.getuid()}"


async def asked_for(request: ModeRequest, job: str, output: Format, *, dry_run: bool) -> int:
    """Requests the mode in the user's name, and shows how it ended."""
    request = request.model_copy(update={"requested_by": user()})
    return await (_judge(request, job, output) if dry_run else _recover(request, job, output))


async def _judge(request: ModeRequest, job: str, output: Format) -> int:
    """Shows whether the job would accept the request in its present state. Changes nothing."""
    status = await (await control_plane()).status(job)
    if problem := requests.invalid(status.state, request):
        raise BadInput(problem)
    if refused := f"job {job} is busy with {status.running}" if status.running else requests.refused(status.state, request):
        raise Refused(f"would be refused: {refused}")
    assert request.mode is not None
    ladder = as_requested(status.state, request).modes
    if output is Format.JSON:
        print_json({"accepted": True, "ladder": ladder})
    else:
        console.print(f"would be accepted: {_in_turn(ladder)}", soft_wrap=True)
    return Exit.DONE


def _in_turn(ladder: Sequence[Mode]) -> str:
    """Describes a ladder. A mode that saves the state recovers nothing, and the next one follows in any case."""
    further = (f", then{'' if before is Mode.DYING_GASP else ', if it fails,'} {mode}" for before, mode in pairwise(ladder))
    return "".join((ladder[0], *further))


async def _recover(request: ModeRequest, job: str, output: Format) -> int:
    rekindle, mode = await control_plane(), request.mode
    assert mode is not None
    job_id = await rekindle.find(job)
    known = (await rekindle.status(job_id)).state.job
    other = await rekindle.running(known)
    handle = await rekindle.begin(mode, request.model_copy(update={"job": job_id, "mode": None}))
    look = f"Look at it with: rekindle show {job}; cancel it with: rekindle cancel {job}"
    try:
        if output is Format.TEXT:
            title = f"{mode} of {job} ({handle.id})"
            verdict = await follow(rekindle, handle, known, title, other.workflow_id if other else "")
        else:
            verdict = await rekindle.verdict(handle)
    except Unavailable as error:
        raise Unavailable(f"{error}\nthe {mode} was asked for, and goes on as soon as Temporal does. {look}") from error
    except asyncio.CancelledError:
        problems.print(f"the {mode} goes on. {look}", highlight=False, soft_wrap=True)
        raise
    state = await _state(rekindle, job_id)
    _show_end(verdict, state, output)
    return _exit_code(verdict, mode)


async def _state(rekindle: Rekindle, job_id: str) -> JobState | None:
    """Returns the job's state after its incident; None if it can no longer be queried."""
    try:
        return (await rekindle.status(job_id, ended=True)).state
    except RekindleError:
        return None


def _show_end(verdict: Verdict, state: JobState | None, output: Format) -> None:
    """Shows the whole incident. The request may have ended as another mode, and may have lowered the policy."""
    incident = _incident_of(verdict, state)
    if output is Format.JSON:
        print_json({**verdict.model_dump(mode="json"), "incident": incident and incident.model_dump(mode="json")})
    elif verdict.outcome is Outcome.REFUSED:
        raise Refused(f"refused, nothing was touched: {verdict.reason}")
    elif incident and state:
        if verdict.tested:
            show_tested(verdict.tested)
        show_incident(incident)
        show_downgrade(state)
    else:
        show_verdict(verdict)


def _incident_of(verdict: Verdict, state: JobState | None) -> Incident | None:
    """Returns the incident that ended with this verdict; None: it is unknown."""
    ends = (verdict.mode, verdict.outcome, verdict.reason, verdict.seconds)
    for incident in reversed(state.history if state else ()):
        last = incident.ladder[-1]
        if (last.mode, last.outcome, last.reason, last.seconds) == ends:
            return incident
    return None


def _exit_code(verdict: Verdict, asked: Mode) -> int:
    """Returns the exit code: 0 only if the requested mode recovered the job.

    A hot switch that ended as a restart of the job is another result.
    """
    if verdict.outcome is Outcome.REFUSED:
        return Exit.REFUSED
    if asked is Mode.STRESS_TEST:
        sound = verdict.tested is not None and not verdict.tested.failed and verdict.tested.findings.sound
        return Exit.DONE if verdict.outcome is Outcome.RECOVERED and sound else Exit.OTHERWISE
    return Exit.DONE if verdict.outcome is Outcome.RECOVERED and verdict.mode is asked else Exit.OTHERWISE


@policy_app.command
async def show(job: str, *, output: Output = Format.TEXT) -> None:
    """Show the sub-health policy of JOB, and why it is what it is.

    Example: rekindle policy show gpt
    """
    state = (await (await control_plane()).status(job)).state
    if output is Format.JSON:
        downgrade = state.downgrade.model_dump(mode="json") if state.downgrade else None
        print_json({"policy": state.policy, "owner": state.job.sub_health, "downgrade": downgrade})
        return
    console.print(f"sub-health policy of {state.job.name}: [bold]{state.policy}[/bold]")
    show_downgrade(state)


@policy_app.command
async def lift(job: str, *, output: Output = Format.TEXT) -> None:
    """Lift the downgrade of JOB: the owner's policy holds again, and sub-healthy pods are judged again.

    Example: rekindle policy lift gpt
    """
    rekindle = await control_plane()
    before = (await rekindle.status(job)).state
    receipt = await rekindle.lift_downgrade(job)
    if output is Format.JSON:
        print_json({"info": receipt.info})
        return
    console.print(receipt.info)
    sub_healths = [one.fault for one in before.faults if one.fault.kind is FaultKind.SUB_HEALTH]
    ranks = ", ".join(str(rank) for rank in sorted({rank for fault in sub_healths for rank in fault.pod_ranks}))
    if before.downgrade and ranks and before.job.sub_health is SubHealthStrategy.HOT_SWITCH:
        console.print(f"pods on sub-healthy nodes are judged again now and may be switched: pod rank {ranks}")
        console.print(f"look at it with: rekindle show {job}")
