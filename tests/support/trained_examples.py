"""Runs a manifest of `examples/kubernetes` on a running product: real training, through the loss of a pod, to the end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.clusters.api_server import Object
from rekindle.cli import measure
from rekindle.cli.measure import StepRecord
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.model.recovery import Incident, Mode, Outcome
from rekindle.temporal import connect
from tests.support.examples import STEPS, Here, adapted, apply, documents, plural_of
from tests.support.kubernetes import Namespace, a_namespace
from tests.training.job import free_port

PATIENCE = 240.0
STRUCK_AFTER = 10
"""Number of steps after which the fault is injected."""

Controllers = Callable[[Namespace], AbstractAsyncContextManager[Any]]


def kubeconfig_of(stack: Stack) -> Path:
    return Path(stack.addresses.state_dir) / "kubernetes" / "kubeconfig"


@dataclass(frozen=True)
class Trained:
    """Result of a completed job."""

    incident: Incident
    """The only incident of the job."""
    records: list[StepRecord]


Happens = Callable[[Rekindle, Namespace, str], Awaitable[None]]
"""Function that injects a fault into the job with this UID."""


async def trained_through(happens: Happens, kind: str, stack: Stack, folder: Path, controllers: Controllers) -> Trained:
    """Applies the manifest, and runs the job until its controller reports its end. Checks that all ranks have equal parameters.

    Args:
        folder: folder that all pods share.
    """
    rekindle = Rekindle(await connect(stack.addresses.temporal, started_here=True))
    async with AsyncExitStack() as stays:
        namespace = await stays.enter_async_context(a_namespace(kubeconfig_of(stack), f"kind-{kind.lower()}-{free_port()}"))
        stays.callback(_show_logs, stack, namespace.name)
        await stays.enter_async_context(controllers(namespace))
        job = await apply(namespace, adapted(documents(kind), Here(stack.addresses.gateway, free_port(), folder)))
        uid = str(job["metadata"]["uid"])
        await _trains(folder, STRUCK_AFTER)
        await happens(rekindle, namespace, uid)
        await _trains(folder, STEPS)
        done = await namespace.until(plural_of(job), "gpt", _is_complete)
        (incident,) = (await rekindle.status(uid, ended=True)).state.history
    assert done["metadata"]["uid"] == uid
    assert len({file.read_bytes() for file in (folder / "final").iterdir()}) == 1
    return Trained(incident, measure.read_steps(folder))


async def trained_through_a_lost_pod(kind: str, stack: Stack, folder: Path, controllers: Controllers) -> None:
    """Deletes the pod of rank 2. Which mode recovers it depends on whether its controller or the replacement creates a pod
    first."""

    async def lose(_: Rekindle, namespace: Namespace, __: str) -> None:
        lost = next(one for one in measure.read_steps(folder) if one.rank == 2)
        await namespace.api.delete(namespace.path("pods", lost.pod), lost.pod_uid, 0)

    trained = await trained_through(lose, kind, stack, folder, controllers)
    assert trained.incident.verdict is Outcome.RECOVERED, trained.incident
    assert Mode.JOB_RESCHEDULING not in {one.mode for one in trained.incident.ladder}, trained.incident
    assert measure.steps_lost(trained.records) == 0
    assert [one.rank for one in measure.switched(trained.records)] == [2, 3]
    assert [len({one.pod_uid for one in trained.records if one.rank == rank}) for rank in range(4)] == [1, 1, 2, 2]


async def watch_anew(stack: Stack) -> None:
    """Restarts the watcher, so that it notices newly installed kinds at once instead of within a minute."""
    watcher = stack.members["watcher"]
    started, process = watcher.started, watcher.process
    assert process
    process.kill()
    while watcher.started == started:
        await asyncio.sleep(0.05)


async def _trains(folder: Path, step: int) -> None:
    """Waits until training has completed a step, by polling the ranks' files."""
    try:
        async with asyncio.timeout(PATIENCE):
            while measure.last_step(measure.read_steps(folder)) < step:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"step {step} was not completed within {PATIENCE:g} s") from None


def _is_complete(job: Object) -> bool:
    """Returns whether the job's controller reports it as complete."""
    conditions = job.get("status", {}).get("conditions") or ()
    return any(one["type"] in ("Complete", "Completed", "Succeeded") and one["status"] == "True" for one in conditions)


def _show_logs(stack: Stack, namespace: str) -> None:
    """Prints the end of the pods' logs, for the analysis of failures."""
    for log in sorted(kubeconfig_of(stack).parent.rglob(f"{namespace}_*.log")):
        print(f"---- {log.name}", *log.read_text().splitlines()[-45:], sep="\n")
