"""A process that talks to Temporal ends as any Python program does, except that the interpreter is not finalized."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def ended(body: str, before: str = "", stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Runs a process whose main function has this body."""
    lines = (
        "import atexit, builtins, sys",
        "from rekindle.interpreter import run_and_end",
        before,
        f"def main():\n {body}",
        "run_and_end(main)",
        "print('behind the end')",
    )
    command = (sys.executable, "-c", "\n".join(lines))
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, env=buffered, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('error: no such job')", 1, "error: no such job\n"),
    ],
)
def test_a_process_ends_with_the_code_that_its_main_said(body: str, code: int, said: str) -> None:
    """A value that is not a number is printed as the text of an error, as `sys.exit` does."""
    process = ended(body)
    assert (process.returncode, process.stdout, process.stderr) == (code, "", said)


def test_what_nobody_caught_is_shown_and_is_code_1() -> None:
    """The process prints a traceback, as the interpreter does."""
    process = ended("raise RuntimeError('unheard of')")
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback")
    assert process.stderr.endswith("RuntimeError: unheard of\n")


def test_what_was_printed_and_what_was_registered_for_the_end_is_done() -> None:
    """Output into a pipe waits in a buffer; logs, traces and temporary folders are handled by exit functions."""
    process = ended("print('first'); atexit.register(print, 'last')")
    assert (process.returncode, process.stdout) == (0, "first\nlast\n")


def test_output_that_cannot_be_written_is_no_success() -> None:
    """The disk is full: the exit code says that the output is incomplete. It is the interpreter's own code."""
    with Path("/dev/full").open("w") as full:
        process = ended("print('a table')", stdout=full.fileno())
    assert process.returncode == 120


def test_the_interpreter_is_not_taken_down_below_threads_that_want_its_lock() -> None:
    """A thread of Temporal's core asks for the interpreter's lock when it has an answer. CPython aborts the process if that
    happens during finalization, when it clears its modules."""
    witness = "class Witness:\n def __del__(self): print('taken down', flush=True)\nbuiltins.witness = Witness()"
    assert ended("pass", before=witness).stdout == ""


BRINGS_AN_ANSWER = """
def _write_to_self():
    began.release()
    somebody_waits = False
    while not somebody_waits:
        for frame in sys._current_frames().values():
            somebody_waits |= frame.f_code.co_name == "_wait_for_answers"
    print("brought")
"""
"""A function that needs the interpreter until some thread waits for it, and for ever where none does. Like asyncio's, it calls no
Python code, so that the thread is seen inside it."""


def others(*more: str) -> tuple[str, ...]:
    """Returns the lines of a program that is about to end while a thread brings it an answer."""
    return (
        "import _thread, asyncio, sys",
        "from rekindle import interpreter",
        "from rekindle.errors import Unavailable",
        "from rekindle.client import Rekindle",
        "began = _thread.allocate_lock()",
        "here = {'__name__': 'asyncio.selector_events', 'began': began, 'sys': sys}",
        f"exec({BRINGS_AN_ANSWER!r}, here)",
        *more,
        "try: asyncio.run(Rekindle.connect('127.0.0.1:1'))",
        "except Unavailable: began.acquire(); _thread.start_new_thread(here['_write_to_self'], ()); began.acquire()",
    )


def test_a_program_of_others_ends_behind_the_threads_that_bring_it_answers() -> None:
    """Such a thread is inside asyncio's `_write_to_self`, and is unknown to `threading`."""
    process = subprocess.run((sys.executable, "-c", "\n".join(others())), capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "brought\n", "")


def test_an_answer_that_never_arrives_keeps_no_program_of_others_for_ever() -> None:
    """A foreign program does not wait for ever for an answer: it ends with its own exit code."""
    program = "\n".join(others("interpreter.PATIENCE = 0.1", "interpreter._brings_an_answer = lambda _: True"))
    process = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
