"""Client of the zygote, which starts processes and reports their ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A launcher or a manager; signals and exit codes are the real ones."""

    def __init__(self, pid: int, ended: "Future[int]", output: Path) -> None:
        self.pid = pid
        self.output = output
        self._ended = ended

    async def code(self, within: float = 110) -> int:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._ended)), within)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal to the process, unless it has ended. An end that is not reported yet does not matter."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Zygote:
    """One for the whole session."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.zygote"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready: Future[int] = Future()
        self._started: dict[int, Future[int]] = {}
        self._ended: dict[int, Future[int]] = {}
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reading.join()

    async def run(self, program: str, argv: list[str], env: dict[str, str], output: Path) -> Process:
        await asyncio.wrap_future(self._ready)
        number = len(self._started)
        self._started[number], self._ended[number] = Future(), Future()
        request = {"id": number, "program": program, "argv": argv, "env": env, "output": str(output)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Process(await asyncio.wrap_future(self._started[number]), self._ended[number], output)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self._ready.set_result(len(lines.readline()))
            for line in lines:
                answer = json.loads(line)
                if "pid" in answer:
                    self._started[answer["id"]].set_result(answer["pid"])
                else:
                    self._ended[answer["id"]].set_result(answer["code"])
