"""`rekindle dev` talks to what it started itself: foreign processes on its ports or in its directory are left alone."""

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Addresses, Member, Stack, temporal_command
from rekindle.errors import Unavailable

REKINDLE = str(Path(sys.executable).parent / "rekindle")
OF_ONE_STACK = pytest.mark.xdist_group("a stack of the command line")
"""Group of tests that share a stack, because a start takes seconds."""


def plain() -> dict[str, str]:
    """Returns the environment without the variables of a control plane."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "REKINDLE_"))}


async def dev(directory: Path, *changed: str, **environment: str) -> asyncio.subprocess.Process:
    """Starts `rekindle dev` on free ports, except for those that are given."""
    ports = [f"--{name}-port=0" for name in ("temporal", "ui", "gateway") if f"--{name}-port" not in changed]
    return await asyncio.create_subprocess_exec(
        *(REKINDLE, "dev", *ports, *changed),
        cwd=directory,
        env={**plain(), **environment, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


NOTED_SECONDS = 8.0
"""Seconds in which a server notes what it has processed. By default it takes longer than 10 s."""


@pytest.mark.same_path("a port of a stack is taken")
@pytest.mark.parametrize("name", ["temporal", "ui", "gateway", "metrics"])
async def test_a_port_that_a_foreign_server_has_is_refused(temporal: WorkflowEnvironment, short_path: Path, name: str) -> None:
    """A foreign Temporal server is never adopted: the port, its process and the option are named, and nothing starts."""
    port = temporal.client.service_client.config.target_host.rsplit(":", 1)[1]
    refused = await dev(short_path, f"--{name}-port", port)
    output, errors = await refused.communicate()
    words = errors.decode()
    assert refused.returncode == 4, words
    for part in (f"port {port}", "temporal", f"--{name}-port"):
        assert part in words
    assert b"running" not in output
    assert not (short_path / ".rekindle" / "temporal.db").exists()


async def test_ports_of_metrics_that_do_not_exist_are_refused(short_path: Path) -> None:
    """The first port is given. Each process has one, and the last one must exist too."""
    refused = await dev(short_path, "--metrics-port", "65534")
    _, errors = await refused.communicate()
    assert refused.returncode != 0
    assert "--metrics-port: 65534 is not accepted, accepted is 0 to 65533" in " ".join(errors.decode().split())


async def test_a_server_counts_as_ready_only_when_it_listens_itself(temporal: WorkflowEnvironment, short_path: Path) -> None:
    """A port that is taken between the look at it and the start of the server is not mistaken for the server's own."""
    foreign = temporal.client.service_client.config.target_host
    (ui,) = free_ports(1)
    addresses = Addresses(
        temporal=foreign, ui=f"http://127.0.0.1:{ui}", gateway="127.0.0.1:1", socket="", state_dir=str(short_path)
    )
    command = temporal_command(addresses, short_path / "temporal.db")
    stack = Stack(addresses, print)
    with pytest.raises(Unavailable, match="temporal ended with code"):
        await stack.start(Member("temporal", command, dict(os.environ), short_path / "log", answers_at=foreign))
    await stack.stop()


async def test_a_server_notes_soon_what_it_has_processed(short_path: Path) -> None:
    """A server that is killed does not process minutes of work again before anything new."""
    temporal, ui = free_ports(2)
    addresses = Addresses(
        temporal=f"127.0.0.1:{temporal}",
        ui=f"http://127.0.0.1:{ui}",
        gateway="127.0.0.1:1",
        socket="",
        state_dir=str(short_path),
    )
    database, stack = short_path / "temporal.db", Stack(addresses, print)
    command = temporal_command(addresses, database)
    await stack.start(Member("temporal", command, dict(os.environ), short_path / "log", answers_at=addresses.temporal))
    try:
        client = await Client.connect(addresses.temporal)
        await client.start_workflow("Any", id="any", task_queue="nobody's")
        async with asyncio.timeout(NOTED_SECONDS):
            while await asyncio.to_thread(_is_to_be_processed_again, database):
                await asyncio.sleep(0.2)
    finally:
        await stack.stop()


def _is_to_be_processed_again(database: Path) -> bool:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        return bool(store.execute("SELECT 1 FROM transfer_tasks LIMIT 1").fetchall())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[tuple[Path, list[bytes]]]:
    """Yields a state directory that the environment names, with a running `rekindle dev` in it, and its output. Another
    installation that the environment names is not asked by any process of the stack."""
    with tempfile.TemporaryDirectory(prefix="rk-") as folder:
        state = Path(folder) / "of its own"
        elsewhere = {"TEMPORAL_NAMESPACE": "elsewhere", "TEMPORAL_API_KEY": "secret"}
        first = await dev(Path(folder), REKINDLE_STATE_DIR=str(state), **elsewhere)
        assert first.stdout is not None
        said: list[bytes] = []
        try:
            async with asyncio.timeout(60):
                while not said or b"In another terminal" not in said[-1]:
                    said.append(await first.stdout.readline())
                    assert said[-1]
            yield state, said
        finally:
            first.send_signal(signal.SIGINT)
            await first.communicate()
        assert first.returncode == 0


@OF_ONE_STACK
@pytest.mark.asyncio(loop_scope="module")
async def test_a_state_directory_has_one_stack(running: tuple[Path, list[bytes]]) -> None:
    """A second `rekindle dev` in the same directory is refused and leaves the first one's details."""
    state, said = running
    assert b"rekindle is running" in said[0]
    second = await dev(state.parent, REKINDLE_STATE_DIR=str(state))
    _, errors = await second.communicate()
    assert second.returncode == 4, errors.decode()
    assert "--state-dir" in errors.decode()
    assert (state / "dev.json").exists()


@OF_ONE_STACK
@pytest.mark.asyncio(loop_scope="module")
async def test_where_a_stack_is_found_is_said(running: tuple[Path, list[bytes]]) -> None:
    """The output names the variable of the state directory. With it commands find the stack from anywhere, also if the
    environment names another Temporal without an address."""
    state, said = running
    assert f"export REKINDLE_STATE_DIR='{state}'".encode() in said[-1]
    another = {"TEMPORAL_NAMESPACE": "elsewhere", "TEMPORAL_TLS": "true", "REKINDLE_STATE_DIR": str(state)}
    for command, words in (("nodes", b"node-2"), ("jobs", b"no job is registered")):
        elsewhere = await asyncio.create_subprocess_exec(
            *(REKINDLE, command), cwd="/", env={**plain(), **another}, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await elsewhere.communicate()
        assert (elsewhere.returncode, words in output) == (0, True)


async def test_an_interrupted_start_ends_at_once(short_path: Path) -> None:
    """Ctrl-C in the middle of a build that takes minutes ends it at once: nothing is reported as running, and nothing is left."""
    os.mkfifo(begun := short_path / "begun")
    (go := short_path / "go").write_text(f"#!/bin/sh\necho $$ > {begun}\nexec sleep 600\n")
    go.chmod(0o755)
    path = f"{short_path}:/usr/bin:/bin"
    starting = await dev(short_path, "--cluster", "kubernetes", PATH=path, XDG_CACHE_HOME=str(short_path), KUBEBUILDER_ASSETS="")
    building = psutil.Process(int(await asyncio.to_thread(begun.read_text)))
    starting.send_signal(signal.SIGINT)
    output, errors = await starting.communicate()
    assert (starting.returncode, output) == (130, b""), errors.decode()
    _, alive = await asyncio.to_thread(psutil.wait_procs, [building], timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.same_path("a demo is interrupted")
@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_demo_leaves_nothing_behind(short_path: Path, interrupt: signal.Signals) -> None:
    """Ctrl-C, a time limit and a terminal that is closed end its processes and remove its directory."""
    demo = await asyncio.create_subprocess_exec(
        *(REKINDLE, "demo", "hot-switch"),
        env={**os.environ, "TMPDIR": str(short_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert demo.stderr is not None
    assert b"starting the Temporal server" in await demo.stderr.readline()
    assert b"starting" in await demo.stderr.readline()
    assert len(list(short_path.glob("rekindle-demo-*"))) == 1
    demo.send_signal(interrupt)
    await demo.communicate()
    assert demo.returncode == 130
    assert list(short_path.glob("rekindle-demo-*")) == []


@pytest.mark.parametrize(("key", "code"), [(b"\n", 0), (b"\x04", 0), (b"\x03", 130)], ids=["Enter", "Ctrl-D", "Ctrl-C"])
async def test_a_key_ends_the_demo_that_shows_its_result(key: bytes, code: int) -> None:
    """Enter and the end of input end it, and an interrupt does at the first attempt, without a traceback."""
    own = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    waits = "asyncio.run(commands._wait_for_a_key({}, commands.Format.TEXT))"
    imports = "import asyncio; from rekindle.cli import app; from rekindle.cli.demos import commands"
    shows = f"{own}; {imports}; app.load = lambda *_: None; app.app = lambda *_, **__: {waits} or 0; app.main()"
    terminal, inside = os.openpty()
    shown = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", shows), stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    )
    os.close(inside)
    words = b""
    while b"Enter ends the demo" not in words:
        words += await asyncio.to_thread(os.read, terminal, 1000)
    os.write(terminal, key)
    async with asyncio.timeout(60):
        assert await shown.wait() == code
    os.close(terminal)
