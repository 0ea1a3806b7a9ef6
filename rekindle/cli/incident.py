"""Command `rekindle incident`: the picture of an incident."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from rekindle.cli import incident_page, incident_text
from rekindle.cli.context import control_plane, local_cluster
from rekindle.cli.demos import measure
from rekindle.cli.logs import of_job
from rekindle.cli.output import Format, Output, print_json
from rekindle.cli.terminal import console, problems
from rekindle.cli.values import whole
from rekindle.client import Rekindle
from rekindle.errors import BadInput, ClusterUnavailable, NotFound
from rekindle.histories import recorded
from rekindle.ids import incident_of
from rekindle.model.picture import Picture, StepRecord
from rekindle.model.state import JobStatus
from rekindle.policy.incidents.pictures import Known

AROUND = 60.0
"""Seconds before and after an incident in which steps of ranks are read."""


async def incident(
    job: str,
    number: Annotated[int | None, Parameter(converter=whole)] = None,
    /,
    *,
    html: Annotated[Path | None, Parameter(help="Write the picture as a page to this file.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the newest incident of JOB (name or id), or the one with this number, as a picture: who did what, and when.

    There is a lane for the cluster, the control plane, the manager, and all ranks that stood alike.

    Example: rekindle incident gpt --html incident.html
    """
    found = await _picture(await control_plane(), job, number)
    if html:
        try:
            html.write_text(incident_page.page(found), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--html: {html} cannot be written: {error}") from error
    if output is Format.JSON:
        print_json(found.model_dump(mode="json"))
    elif html:
        problems.print(Text(f"incident {found.number} of {found.job} is in {html}"), soft_wrap=True)
    else:
        for line in incident_text.lines(found, console.width):
            console.print(Text(line), soft_wrap=True)


async def _picture(rekindle: Rekindle, name: str, number: int | None) -> Picture:
    status, now = await rekindle.status(name, ended=True), datetime.now(UTC).timestamp()
    if not await rekindle.lives(status.state.job.id):  # it was terminated during an incident, which has no end then
        status = status.model_copy(update={"begun": None})
    state, numbers = status.state, _numbers(status)
    if number is None and not state.incidents:
        raise BadInput(f"job: {name} has had no incident")
    wanted = number if number is not None else max([state.incidents, *numbers])
    known = Known(status, wanted, now, await recorded(rekindle, state.job, wanted, now))
    if known.is_nothing:
        found = ", ".join(map(str, numbers)) or "none"
        if 0 < wanted <= state.incidents:
            raise BadInput(f"incident: {name} keeps no record of incident {wanted} any more, known are: {found}")
        raise BadInput(f"incident: {name} has no incident {wanted}, known are: {found}")
    account = (await rekindle.account(state.job.id)).account
    rows = account.rows if account.current else ()  # a training side that tells no times has no account
    row = next((one for one in rows if one.number == wanted), None)
    return known.picture(await _steps(state.job.id, known.began - AROUND, known.ends + AROUND), row)


def _numbers(status: JobStatus) -> list[int]:
    """Returns the numbers of the incidents that the job knows, the newest last."""
    running = status.begun.number if status.begun else incident_of(status.recovery)
    return sorted({*(one.number for one in status.state.history), *([running] if running else [])})


async def _steps(job_id: str, since: float, until: float) -> list[StepRecord]:
    """Returns the steps of the job's ranks in this time; none for other clusters, whose step logs are not visible from here."""
    try:
        async with local_cluster() as cluster:
            directory, _ = await of_job(cluster, job_id)
    except (ClusterUnavailable, NotFound):
        return []
    return measure.read_steps(directory, since, until)
