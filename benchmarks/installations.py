"""An installation to be measured: real Temporal, the real control worker over pods that answer at once, and
the real gateway. For `benchmarks.load` and `benchmarks.outages`.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from rekindle import ids
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Addresses, Member, Stack, server_root, temporal_command
from rekindle.model.dialogue import Receipt
from rekindle.model.job import Job
from rekindle.model.state import JobState, Registration
from rekindle.temporal import TASK_TIMEOUT


@asynccontextmanager
async def installation(directory: Path, told: Sequence[str] = (), temporal: str = "") -> AsyncIterator[Stack]:
    """Temporal, control worker and gateway, until the block ends; who is killed is started again.

    Args:
        told: options of `benchmarks.load_control`.
        temporal: address of a Temporal service that runs already. Empty: an embedded server is started.
    """
    port, ui, gateway = free_ports(3)
    addresses = Addresses(
        temporal=temporal or f"127.0.0.1:{port}",
        ui=f"http://127.0.0.1:{ui}",
        gateway=f"127.0.0.1:{gateway}",
        socket=str(directory / "none.sock"),
        state_dir=str(directory),
    )
    environment = {**os.environ, **addresses.environment(), "PYTHONPATH": str(server_root()), "PYTHONUNBUFFERED": "1"}
    stack = Stack(addresses, print)

    async def start(name: str, command: list[str], answers_at: str = "") -> None:
        await stack.start(Member(name, command, environment, directory / f"{name}.log", answers_at))

    try:
        if not temporal:
            await start("temporal", temporal_command(addresses, directory / "temporal.db"), addresses.temporal)
        await start("control", [sys.executable, "-P", "-m", "benchmarks.load_control", *told])
        await start("gateway", [sys.executable, "-P", "-m", "workers.gateway"])
        yield stack
    finally:
        await stack.stop()


async def persistently(ask: Callable[[], Coroutine[Any, Any, Any]], patience: float = 60.0) -> Any:
    """Retries a call until it succeeds, as our processes do while Temporal is away."""
    until = time.monotonic() + patience
    while True:
        try:
            return await ask()
        except Exception:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


async def register(temporal: Client, job: Job) -> None:
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        ids.Workflows.TRAINING_JOB,
        JobState.of(job),
        id=ids.job_workflow(job.id),
        task_queue=ids.CONTROL_QUEUE,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    await temporal.execute_update_with_start_workflow(
        ids.Updates.REGISTER, Registration(job=job), start_workflow_operation=start, result_type=Receipt
    )
