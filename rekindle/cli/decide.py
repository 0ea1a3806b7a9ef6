"""Commands with which people decide about a recovery: they approve, deny or abort it, or want another try."""

from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.context import control_plane
from rekindle.cli.output import Format, Output, print_json
from rekindle.cli.recover import user
from rekindle.cli.terminal import console
from rekindle.cli.values import Said
from rekindle.model.dialogue import Receipt

OnlyMode = Annotated[Said, Parameter(name="--mode", help="The mode that is meant; by default the one that waits.")]
Reason = Annotated[str, Parameter(help="Why; it is part of the verdict.")]


async def approve(job: str, *, mode: OnlyMode = "", reason: Reason = "", output: Output = Format.TEXT) -> None:
    """Approve the mode of JOB (name or id) that waits for it (annotation rekindle.io/approval), or that a storm holds.

    Example: rekindle approve gpt
    """
    _show(await (await control_plane()).answer(job, approved=True, mode=mode, by=user(), reason=reason), job, output)


async def deny(job: str, *, mode: OnlyMode = "", reason: Reason = "", output: Output = Format.TEXT) -> None:
    """Deny the mode of JOB (name or id) that waits for approval: the next one is tried, and a slow node is left alone.

    A mode that a storm holds can be denied too.

    Example: rekindle deny gpt --reason "the run ends in an hour"
    """
    _show(await (await control_plane()).answer(job, approved=False, mode=mode, by=user(), reason=reason), job, output)


async def abort(job: str, *, reason: Reason = "", output: Output = Format.TEXT) -> None:
    """Abort the recovery of JOB (name or id), also one that a fault began: its mode is cancelled, and no other follows.

    A mode that must not stop half-way goes on to its end.

    Example: rekindle abort gpt
    """
    _show(await (await control_plane()).abort(job, by=user(), reason=reason), job, output)


async def retry(job: str, *, output: Output = Format.TEXT) -> None:
    """Recover JOB (name or id) again, whose recovery was given up, denied or aborted.

    It may be restarted once more, even if its restarts are used up.

    Example: rekindle retry gpt
    """
    _show(await (await control_plane()).retry(job, by=user()), job, output)


def _show(receipt: Receipt, job: str, output: Format) -> None:
    if output is Format.JSON:
        print_json({"info": receipt.info})
        return
    console.print(receipt.info, soft_wrap=True, markup=False, highlight=False)
    console.print(f"look at it with: rekindle show {job}", soft_wrap=True, markup=False, highlight=False)
