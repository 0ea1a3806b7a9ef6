"""Runs `rekindle` as a user would, in its own process, but without the second that loading takes: a process that has loaded it
forks for each command. That the installed command starts is checked by tests of `rekindle dev`, the demos and the wheels."""

import asyncio
import io
import os
import sys
from asyncio import StreamReader, StreamReaderProtocol
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from rekindle.cli import app
from rekindle.cli.terminal import console, problems
from tests.support.measuring import only_own_lines

_servers = get_context("forkserver")
_loaded = [*app.COMMANDS, *(path for path, _ in app.GROUPS.values())]
_servers.set_forkserver_preload(["rekindle.cli.app", *dict.fromkeys(path.partition(":")[0] for path in _loaded)])


class Command:
    """Running command, with the part of `asyncio.subprocess.Process` that tests use."""

    stdout: StreamReader
    stderr: StreamReader

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], directory: Path, typed: str) -> None:
        self._output, output = _servers.Pipe(duplex=False)
        self._errors, errors = _servers.Pipe(duplex=False)
        self._process = _servers.Process(target=_run, args=(arguments, dict(environment), directory, typed, output, errors))
        self._process.start()
        output.close()
        errors.close()

    async def read(self) -> None:
        self.stdout, self.stderr = await _reader(self._output), await _reader(self._errors)

    async def communicate(self) -> tuple[bytes, bytes]:
        written = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await asyncio.to_thread(self._process.join)
        return written[0], written[1]

    def send_signal(self, number: int) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


async def begun(
    arguments: tuple[str, ...], environment: Mapping[str, str], directory: Path = Path(), standard_input: str = ""
) -> Command:
    """Starts a command.

    Args:
        environment: complete environment of the command.
    """
    command = Command(arguments, environment, directory.absolute(), standard_input)
    await command.read()
    return command


async def _reader(pipe: Connection) -> StreamReader:
    reader = StreamReader()
    file = os.fdopen(os.dup(pipe.fileno()), "rb")
    pipe.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: StreamReaderProtocol(reader), file)
    return reader


def _run(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    directory: Path,
    typed: str,
    output: Connection,
    errors: Connection,
) -> None:
    """Runs in the process of the command, from its beginning to its end."""
    only_own_lines()
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # the old one remembers whether it could seek
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.stdin = io.StringIO(typed)
    if columns := environment.get("COLUMNS"):
        console.width = problems.width = int(columns)
    sys.argv = ["rekindle", *arguments]
    app.main()
