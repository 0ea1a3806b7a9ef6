"""Examines an installation link by link: Temporal, its namespace and attributes, control worker, cluster, jobs and gateways.

Each link that is broken says how to mend it. Used by `rekindle doctor`. Links on Kubernetes are those of
`workers.examination`.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from rekindle import __version__
from rekindle.client import JobRow, Rekindle
from rekindle.deployment import NEVER, SILENT, Deployment, read_deployment
from rekindle.errors import RekindleError
from rekindle.ids import gateway_queue
from rekindle.model.bounds import cut
from rekindle.model.examined import Health, Link, failed, ok, unknown, warning
from rekindle.model.state import JobStatus
from rekindle.nodes import Nodes
from rekindle.temporal import WANTED, in_words, registered_attributes
from rekindle.temporal_service import look_at

LEAST_RETENTION = timedelta(days=1)
"""Retention of closed workflows below which the history of a recovery may be gone before a person looks at it."""

RELEASE = re.compile(r"\d+(\.\d+)+\w*")
"""Matches the release at the beginning of a version that is derived from the code."""

MOST_JOBS = 50
"""Maximum number of jobs whose state is read."""

MOST_NAMED = 5
"""Maximum number of jobs that a text names."""


async def examine(rekindle: Rekindle) -> AsyncIterator[Link]:
    """Yields each link as soon as it is examined. Links that depend on a broken one are left out."""
    client = rekindle.temporal
    namespace = await _namespace(client)
    yield namespace
    if namespace.health is Health.FAILED:
        return
    yield await _attributes(client)
    deployment, worker = await _control_worker(client)
    yield worker
    if worker.health is Health.FAILED:
        return
    yield _version(deployment)
    yield await _cluster(rekindle)
    async for link in _jobs(rekindle):
        yield link


async def _namespace(client: Client) -> Link:
    service = await look_at(client)
    if service.problem:
        return failed("Temporal", service.problem.words, service.problem.mend)
    where = f"{client.service_client.config.target_host}, namespace {client.namespace}"
    words = f"version {service.version} at {where}"
    if not service.retention:
        return ok("Temporal", words)
    words += f", keeps closed workflows for {_days(service.retention)}"
    if service.retention < LEAST_RETENTION:
        return warning("Temporal", words, f"temporal operator namespace update --namespace {client.namespace} --retention 72h")
    return ok("Temporal", words)


def _days(time: timedelta) -> str:
    number, unit = (time.days, "day") if time.days else (time.total_seconds() / 3600, "hour")
    return f"{number:g} {unit}{'' if number == 1 else 's'}"


async def _attributes(client: Client) -> Link:
    name = "search attributes"
    try:
        known = await registered_attributes(client)
    except RPCError as error:
        return unknown(name, f"not listed: {in_words(error)}")
    missing = sorted(WANTED.keys() - known.keys())
    wrong = sorted(one for one, kind in known.items() if kind != WANTED[one])
    if not missing and not wrong:
        return ok(name, f"all {len(WANTED)} are registered")
    words = [f"missing: {', '.join(missing)}"] if missing else []
    words += [f"of another type: {', '.join(wrong)}"] if wrong else []
    command = "temporal operator search-attribute {} --namespace " + client.namespace + " --name {}"
    create = [f"{command.format('create', one)} --type {_type_of(one)}" for one in missing]
    remove = [command.format("remove", one) for one in wrong]
    return failed(name, "; ".join(words), "; ".join([*remove, *create]))


def _type_of(attribute: str) -> str:
    """Returns the type of an attribute as Temporal's command line has it: `KeywordList`."""
    written = IndexedValueType.Name(WANTED[attribute]).removeprefix("INDEXED_VALUE_TYPE_")
    return "".join(map(str.capitalize, written.split("_")))


async def _control_worker(client: Client) -> tuple[Deployment, Link]:
    name, start = (
        "control worker",
        "start one: rekindle dev, or kubectl get deployment rekindle-control in the installation's namespace",
    )
    try:
        found = await read_deployment(client)
    except RPCError as error:
        return Deployment(), failed(name, in_words(error), "look at the Temporal service")
    if not found.versions:
        return found, failed(name, f"none has ever started in namespace {client.namespace}", start)
    current, now = found.version(found.current), datetime.now(UTC)
    if not found.current or not current.has_workers(now):
        working = [one.build_id for one in found.versions if one.has_workers(now)]  # another one cannot be made current
        words = f"version {current.build_id} is current and has no worker" if found.current else "no version is current"
        return found, failed(name, words, f"rekindle versions use {working[0]}" if working else start)
    return found, ok(name, f"version {current.build_id} is current, and asks for work")


def _version(found: Deployment) -> Link:
    theirs, name = found.current.partition("-")[0], "version of this command"
    if not RELEASE.fullmatch(theirs):
        words = f"{__version__}; that of the control worker cannot be compared, as REKINDLE_BUILD_ID calls it {found.current}"
        return unknown(name, words)
    if theirs == __version__:
        return ok(name, f"{__version__}, as the control worker's")
    words = f"{__version__}, and the control worker is {theirs}: what only one of them has does not work"
    return warning(name, words, f"install rekindle-recovery=={theirs}")


async def _cluster(rekindle: Rekindle) -> Link:
    try:
        found = await Nodes(rekindle).look()
    except RekindleError as error:
        return failed("cluster", f"the control worker does not read it: {error}", "look at the log of the control worker")
    faulty = len(found.nodes) + found.more
    return ok("cluster", f"the control worker reads it: {found.count} nodes, {found.count - faulty} of them well")


async def _jobs(rekindle: Rekindle) -> AsyncIterator[Link]:
    rows = await rekindle.jobs()
    if not rows:
        words = "none is registered, so that neither the watcher nor a gateway is seen"
        yield unknown("jobs", words, "start a job, and look again")
        return
    found = [(row, await _status_of(rekindle, row)) for row in rows[:MOST_JOBS]]
    silent = [row.name for row, status in found if status is None]
    away = [row.name for row, status in found if status is not None and status.state.attachment is None]
    more = f", of which {MOST_JOBS} were looked at" if len(rows) > MOST_JOBS else ""
    if silent:
        yield failed("jobs", f"{_named(silent)} give no answer", "look at the log of the control worker")
    else:
        yield ok("jobs", f"{len(rows)} are registered{more}")
    if away:
        words = f"{_named(away)} are not connected to a gateway: only restarts recover them"
        mend = "look at the log of the job's manager; MINDX_SERVER_IP of its pod names the gateway"
        yield warning("training sides", words, mend)
    attached = (status.state.attachment for _, status in found if status is not None)
    for queue, jobs in sorted(Counter(one.queue for one in attached if one is not None).items()):
        yield await _gateway(rekindle.temporal, queue, jobs)


async def _status_of(rekindle: Rekindle, row: JobRow) -> JobStatus | None:
    try:
        return await rekindle.status(row.id)
    except RekindleError:
        return None


async def _gateway(client: Client, queue: str, jobs: int) -> Link:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    name = queue.removeprefix(gateway_queue(""))
    try:
        pollers = (await client.workflow_service.describe_task_queue(request)).pollers
    except RPCError as error:
        return unknown(f"gateway {name}", in_words(error))
    asked = max((poller.last_access_time.ToDatetime(UTC) for poller in pollers), default=NEVER)
    if datetime.now(UTC) - asked < SILENT:
        return ok(f"gateway {name}", f"holds the streams of {jobs} {_jobs_word(jobs)}, and asks for work")
    words = f"holds the streams of {jobs} {_jobs_word(jobs)}, and has not asked for work for {SILENT.total_seconds():.0f} s"
    return failed(f"gateway {name}", words, "start it again; jobs connect to another one by themselves")


def _jobs_word(jobs: int) -> str:
    return "job" if jobs == 1 else "jobs"


def _named(jobs: list[str]) -> str:
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return f"{', '.join(cut(job, 63) for job in jobs[:MOST_NAMED])}{more}"
