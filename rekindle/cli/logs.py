"""`rekindle logs`: output of a job's pods, including pods that a recovery has replaced. Logs stay in the job's directory."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.context import local_cluster
from rekindle.cli.terminal import console
from rekindle.cli.values import Said
from rekindle.cluster_client import ClusterClient
from rekindle.errors import BadInput, NotFound
from rekindle.model.cluster import Pod
from rekindle.settings import read_settings


async def logs(
    job: str,
    *,
    pod: Annotated[Said, Parameter(help="One pod of the job; without it, all of them.")] = "",
    follow: Annotated[bool, Parameter(negative="", help="Until the pod ends; needs --pod.")] = False,
) -> None:
    """Print what the pods of JOB (name or id) wrote, first those that are gone, the oldest first.

    Example: rekindle logs gpt --pod gpt-worker-1 --follow
    """
    if follow and not pod:
        raise BadInput("--follow: needs --pod, one stream at a time")
    async with local_cluster() as cluster:
        directory, living = await of_job(cluster, job)
        gone = _logs_of_the_gone(directory, living)
        if not gone and not living:
            raise NotFound(f"no log of {job} is left in {directory / 'logs'}")
        _check(pod, job, {path.name.split(".")[0] for path in gone} | {one.metadata.name for one in living})
        for path in gone if not follow else ():
            name, uid, _ = path.name.rsplit(".", 2)
            if pod in ("", name):
                console.print(f"[bold]== {name}, gone (uid {uid}...)[/bold]", highlight=False)
                await _write(_text_of(path))
        for one in living:
            if pod in ("", one.metadata.name):
                console.print(f"[bold]== {one.metadata.name}, {one.status.phase}[/bold]", highlight=False)
                await _write(_log_of(one, cluster, directory, follow=follow))


async def of_job(cluster: ClusterClient, job: str) -> tuple[Path, list[Pod]]:
    """Returns directory and pods of a job. A job that has ended has only its directory."""
    try:
        found = await cluster.job(job)
    except NotFound:
        left = _left_behind(job)
        if not left:
            raise
        return left[-1], []
    return Path(found.status.directory), await cluster.pods(found.metadata.uid)


def _left_behind(job: str) -> list[Path]:
    """Returns the directories of jobs that had this name or id; the newest last."""
    found = []
    for directory in (read_settings().state_dir / "jobs").glob("*-*"):
        name, uid = directory.name.rsplit("-", 1)
        if job == name or job.startswith(f"{uid}-"):
            found.append(directory)
    return sorted(found, key=lambda directory: directory.stat().st_mtime)


def _logs_of_the_gone(directory: Path, living: list[Pod]) -> list[Path]:
    names = {_file_of(pod) for pod in living}
    found = [path for path in (directory / "logs").glob("*.*.log") if path.name not in names]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _file_of(pod: Pod) -> str:
    return f"{pod.metadata.name}.{pod.metadata.uid[:8]}.log"


async def _log_of(pod: Pod, cluster: ClusterClient, directory: Path, *, follow: bool) -> AsyncIterator[str]:
    """Yields the log of a pod. If the pod has been deleted since it was listed, yields the log file that it left."""
    try:
        async for piece in cluster.logs(pod.metadata.name, follow=follow):
            yield piece
    except NotFound:
        async for piece in _text_of(directory / "logs" / _file_of(pod)):
            yield piece


def _check(pod: str, job: str, known: set[str]) -> None:
    if pod and pod not in known:
        raise BadInput(f"--pod: {pod} is not a pod of {job}, accepted are {', '.join(sorted(known))}")


async def _text_of(path: Path) -> AsyncIterator[str]:
    yield path.read_text(errors="replace")


async def _write(pieces: AsyncIterator[str]) -> None:
    """Writes the pieces, and a final line break, so that the next log begins on a new line."""
    last = "\n"
    async for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
        last = piece or last
    if not last.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
