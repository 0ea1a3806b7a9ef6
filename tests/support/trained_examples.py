"""A manifest of `examples/kubernetes` on a running product: real training, through the loss of a pod, to the end."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from activities.clusters.api_server import Object
from rekindle.cli import measure
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.model.recovery import Mode, Outcome
from rekindle.temporal import connect
from tests.support.examples import STEPS, Here, adapted, apply, documents, plural_of
from tests.support.kubernetes import Namespace, a_namespace
from tests.training.job import free_port

PATIENCE = 240.0
LOST_AFTER = 10
"""Steps."""

Controllers = Callable[[Namespace], AbstractAsyncContextManager[Any]]


def kubeconfig_of(stack: Stack) -> Path:
    return Path(stack.addresses.state_dir) / "kubernetes" / "kubeconfig"


async def trained_through_a_lost_pod(kind: str, stack: Stack, folder: Path, controllers: Controllers) -> None:
    """Applies the manifest, takes the pod of rank 2 away, and sees to it that everything is as it has to be.

    Args:
        folder: which all pods share.
    """
    rekindle = Rekindle(await connect(stack.addresses.temporal, started_here=True))
    async with AsyncExitStack() as stays:
        namespace = await stays.enter_async_context(a_namespace(kubeconfig_of(stack), f"kind-{kind.lower()}"))
        stays.callback(_show_logs, stack, namespace.name)
        await stays.enter_async_context(controllers(namespace))
        job = await apply(namespace, adapted(documents(kind), Here(stack.addresses.gateway, free_port(), folder)))
        await _trains(folder, LOST_AFTER)
        lost = next(one for one in measure.read_steps(folder) if one.rank == 2)
        await namespace.api.delete(namespace.path("pods", lost.pod), lost.pod_uid, 0)
        await _trains(folder, STEPS)
        done = await namespace.until(plural_of(job), "gpt", _is_complete)
        history = (await rekindle.status(str(job["metadata"]["uid"]), ended=True)).state.history
    assert done["metadata"]["uid"] == job["metadata"]["uid"]
    (incident,) = history
    assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED)], incident
    records = measure.read_steps(folder)
    assert measure.steps_lost(records) == 0
    assert [moved.rank for moved in measure.switched(records)] == [2, 3]
    assert len({file.read_bytes() for file in (folder / "final").iterdir()}) == 1


async def _trains(folder: Path, step: int) -> None:
    """Files of ranks are looked at: nothing tells of them."""
    try:
        async with asyncio.timeout(PATIENCE):
            while measure.last_step(measure.read_steps(folder)) < step:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"step {step} was not completed within {PATIENCE:g} s") from None


def _is_complete(job: Object) -> bool:
    """As its controller says."""
    conditions = job.get("status", {}).get("conditions") or ()
    return any(one["type"] in ("Complete", "Completed", "Succeeded") and one["status"] == "True" for one in conditions)


def _show_logs(stack: Stack, namespace: str) -> None:
    """For whoever reads of a failure."""
    for log in sorted(kubeconfig_of(stack).parent.rglob(f"{namespace}_*.log")):
        print(f"---- {log.name}", *log.read_text().splitlines()[-25:], sep="\n")
