"""Commands that start recoveries and show or lift what they left behind."""

import getpass
from typing import Annotated

from cyclopts import App, Parameter

from rekindle.cli.context import control_plane
from rekindle.cli.output import Format, console, print_json, show_verdict
from rekindle.errors import Refused
from rekindle.model.recovery import Mode, Outcome, Verdict

policy_app = App(name="policy", help="Show a job's sub-health policy, and lift its downgrade.")

Output = Annotated[Format, Parameter(help="text for people, json for machines.")]


async def hot_switch(
    job: str,
    *,
    pod_rank: Annotated[int, Parameter(help="The pod that moves, by its pod rank, from 0.")],
    force: Annotated[bool, Parameter(negative="", help="Also a pod that nobody reported as sub-healthy.")] = False,
    output: Output = Format.TEXT,
) -> int:
    """Move a pod of JOB (name or id) to a spare node while training pauses for a moment.

    Example: rekindle hot-switch gpt --pod-rank 1
    """
    return await _recover(Mode.HOT_SWITCH, job, output, pod_rank=pod_rank, force=force)


async def reschedule(job: str, *, output: Output = Format.TEXT) -> int:
    """Stop all pods of JOB and start them again on healthy nodes; training resumes from its last checkpoint.

    Example: rekindle reschedule gpt
    """
    return await _recover(Mode.JOB_RESCHEDULING, job, output)


async def _recover(mode: Mode, job: str, output: Format, *, pod_rank: int | None = None, force: bool = False) -> int:
    rekindle = await control_plane()
    user = getpass.getuser()
    handle = await rekindle.start(mode, job, pod_rank=pod_rank, force=force, requested_by=user)
    if output is Format.TEXT:
        with console.status(f"{mode} of {job} ({handle.id}) ..."):
            verdict = await rekindle.verdict(handle)
    else:
        verdict = await rekindle.verdict(handle)
    return _shown(verdict, output)


def _shown(verdict: Verdict, output: Format) -> int:
    if output is Format.JSON:
        print_json(verdict.model_dump(mode="json"))
    elif verdict.outcome is Outcome.REFUSED:
        raise Refused(f"refused, nothing was touched: {verdict.reason}")
    else:
        show_verdict(verdict)
    return {Outcome.RECOVERED: 0, Outcome.REFUSED: 4}.get(verdict.outcome, 1)


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
    if state.downgrade:
        console.print(f"downgraded from {state.downgrade.before} at {state.downgrade.since}: {state.downgrade.reason}")


@policy_app.command
async def lift(job: str, *, output: Output = Format.TEXT) -> None:
    """Lift the downgrade of JOB: the owner's policy holds again, and sub-healthy pods are judged again.

    Example: rekindle policy lift gpt
    """
    receipt = await (await control_plane()).lift_downgrade(job)
    if output is Format.JSON:
        print_json({"info": receipt.info})
    else:
        console.print(receipt.info)
