"""Fixtures that several folders share."""

import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings
from temporalio.testing import WorkflowEnvironment

from tests.support.durations import seconds_by_folder
from tests.support.sampling import ALL, sampled
from tests.support.temporal import patient_workers, skipping_server

TESTS = str(Path(__file__).parent)


def pytest_configure() -> None:
    """A run in the background ignores SIGINT, one under `nohup` SIGHUP, and so would every command that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    settings.register_profile("busy", deadline=None)  # no test is about time: the machine may do other work
    settings.load_profile("busy")
    patient_workers()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what proves the same path as another test, unless all are wanted or tests are named one by one."""
    if ALL or any("::" in argument for argument in config.args):
        return
    items[:], left_out = sampled(items)
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """A traceback begins in the tests: native ones show each of pytest's own forty frames."""
    frames = call.excinfo and call.excinfo.tb
    while frames and not frames.tb_frame.f_code.co_filename.startswith(TESTS):
        frames = frames.tb_next
    if call.excinfo and frames:
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value.with_traceback(frames))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds of each folder, where there are several. Tests that run side by side count one after the other."""
    reports = (one for kind in terminalreporter.stats.values() for one in kind if isinstance(one, pytest.TestReport))
    if len(rows := seconds_by_folder(reports)) > 1:
        terminalreporter.section("seconds by folder")
        for folder, (tests, seconds) in rows.items():
            terminalreporter.line(f"{seconds:7.1f} s  {tests:5d} tests  {folder}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory that may have a Unix socket in it: `tmp_path`, with the user's, the run's and the test's name, is too long."""
    with tempfile.TemporaryDirectory(prefix="rk-") as short:
        yield Path(short)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real Temporal server for the whole run; jobs of tests never share an id."""
    env = await skipping_server()
    yield env
    await env.shutdown()
