"""Fixtures that several folders share."""

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from tests.support.durations import seconds_by_folder
from tests.support.sampling import ALL, sampled
from tests.support.temporal import skipping_server


def pytest_configure() -> None:
    """A run in the background ignores SIGINT, one under `nohup` SIGHUP, and so would every command that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what proves the same path as another test, unless all are wanted or tests are named one by one."""
    if ALL or any("::" in argument for argument in config.args):
        return
    items[:], left_out = sampled(items)
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds of each folder, where there are several. Tests that run side by side count one after the other."""
    reports = (one for kind in terminalreporter.stats.values() for one in kind if isinstance(one, pytest.TestReport))
    if len(rows := seconds_by_folder(reports)) > 1:
        terminalreporter.section("seconds by folder")
        for folder, (tests, seconds) in rows.items():
            terminalreporter.line(f"{seconds:7.1f} s  {tests:5d} tests  {folder}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real Temporal server for the whole run; jobs of tests never share an id."""
    env = await skipping_server()
    yield env
    await env.shutdown()
