"""Commands about versions of the control worker: which there are, what runs on each, and which one is current."""

from datetime import UTC, datetime
from typing import Any

from cyclopts import App
from temporalio.client import Client
from temporalio.service import RPCError

from rekindle.cli.context import control_plane
from rekindle.cli.output import Format, Output, print_columns, print_json
from rekindle.cli.terminal import console
from rekindle.deployment import Version, count_open, make_current, read_deployment
from rekindle.errors import BadInput, Refused
from rekindle.ids import RECOVERY, job_workflow

versions_app = App(name="versions")


@versions_app.default
async def show(*, output: Output = Format.TEXT) -> None:
    """Show the versions of the control worker, the newest first. One may go when nothing runs on it any more.

    Others are records of nodes, maintenances, upgrades, and the queue for spare nodes.

    Example: rekindle versions
    """
    rekindle = await control_plane()
    client = rekindle.temporal
    try:
        rows = [await _row(client, version) for version in (await read_deployment(client)).versions]
    except RPCError as error:
        raise rekindle.unanswered(error) from error
    if output is Format.JSON:
        print_json(rows)
        return
    if not rows:
        console.print(f"no control worker has started in namespace {client.namespace}", markup=False, soft_wrap=True)
        return
    print_columns(("version", "", "workers", "jobs", "recoveries", "others"), [_cells(row) for row in rows])


async def _row(client: Client, version: Version) -> dict[str, Any]:
    jobs, recoveries = [await count_open(client, version.build_id, begins) for begins in (job_workflow(""), RECOVERY)]
    others = await count_open(client, version.build_id) - jobs - recoveries
    return {
        "version": version.build_id,
        "current": version.current,
        "workers": version.has_workers(datetime.now(UTC)),
        "jobs": jobs,
        "recoveries": recoveries,
        "others": max(0, others),  # some may have ended between two counts
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state, workers = "current" if row["current"] else "", "alive" if row["workers"] else "none"
    return (row["version"], state, workers, *(str(row[name]) for name in ("jobs", "recoveries", "others")))


@versions_app.command
async def use(version: str) -> None:
    """Make VERSION current: new recoveries begin on it, and jobs move to it as soon as they have no recovery.

    Example: rekindle versions use 0.1.0-5eb5607ce6a8
    """
    rekindle = await control_plane()
    client = rekindle.temporal
    try:
        known = await read_deployment(client)
    except RPCError as error:
        raise rekindle.unanswered(error) from error
    if version not in (builds := [each.build_id for each in known.versions]):
        raise BadInput(f"unknown version {version}; there are: {', '.join(builds) or 'none'}")
    if not known.version(version).has_workers(datetime.now(UTC)):
        raise Refused(f"version {version} has no worker: start its control worker first")
    try:
        await make_current(client, version, known.token)
    except RPCError as error:
        raise Refused(f"version {version} was not made current: {error.message}") from error
    console.print(f"{version} is current")
