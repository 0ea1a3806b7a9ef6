"""Exit codes on which scripts branch: what happens to the output of a command is not what happened to the job."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.cli.exits import WORDS, Exit

ROOT = Path(__file__).resolve().parents[2]
ALL = ("check", "plain")


def ended(*arguments: str, stdout: int, stderr: int = subprocess.PIPE, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command whose output goes there.

    Args:
        before: lines of Python that come first.
    """
    body = f"import sys\n{before}\nfrom rekindle.cli import app\nsys.argv = ['rekindle', *sys.argv[1:]]\napp.main()"
    command = (sys.executable, "-P", "-c", body, *arguments)
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=60, check=False)


def closed(stream: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command one of whose streams a shell has closed."""
    command = ("sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-P", "-m", "rekindle", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that is no longer read, as after `head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_a_reader_that_has_left_is_told_apart(unread: int) -> None:
    """The code is that which a shell gives to a process that SIGPIPE ended."""
    process = ended(*ALL, stdout=unread)
    assert (process.returncode, process.stderr) == (Exit.UNREAD, "")


def test_output_that_cannot_be_written_is_told_apart() -> None:
    """The disk is full: the reason is said."""
    with Path("/dev/full").open("w") as full:
        process = ended(*ALL, stdout=full.fileno())
    assert process.returncode == Exit.UNWRITTEN
    assert "could not be written: [Errno 28]" in process.stderr


@pytest.mark.parametrize("arguments", [ALL, (*ALL, "-o", "json"), ("--help",)], ids=["text", "json", "help"])
def test_output_that_is_closed_cannot_be_written(arguments: tuple[str, ...]) -> None:
    """`rekindle ... >&-`: nobody has read the answer."""
    process = closed(">&-", *arguments)
    assert process.returncode == Exit.UNWRITTEN
    assert "could not be written: [Errno 9]" in process.stderr


def test_input_that_is_closed_cannot_be_read() -> None:
    """`rekindle check - <&-`: a file that cannot be read is bad input."""
    process = closed("<&-", "check", "-")
    assert process.returncode == Exit.BAD_INPUT
    assert "standard input cannot be read: [Errno 9]" in process.stderr


def test_errors_that_nobody_reads_keep_their_code(unread: int) -> None:
    """`rekindle ... 2>&1 | head -0`: the exit code reports the error that could not be printed."""
    assert ended("check", "nothing", stdout=subprocess.PIPE, stderr=unread).returncode == Exit.BAD_INPUT


def test_a_bug_is_told_apart() -> None:
    """A traceback is no answer about the job."""
    broken = "import rekindle.cli.check as e\ndef fail(*_): raise RuntimeError('unheard of')\ne.rules_of = fail"
    process = ended(*ALL, stdout=subprocess.PIPE, before=broken)
    assert process.returncode == Exit.BUG
    assert process.stderr.endswith("RuntimeError: unheard of\n")


def test_a_removal_that_breaks_does_not_say_that_something_is_left() -> None:
    """Only the code 1 says so. The traceback is shown, as of the command itself."""
    fail = "async def fail(_): raise RuntimeError('unheard of')"
    body = f"import sys, workers.removal\n{fail}\nworkers.removal.main = fail\nsys.argv = ['removal']\nworkers.removal.start()"
    command = (sys.executable, "-P", "-c", body)
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == Exit.BUG
    assert process.stderr.endswith("RuntimeError: unheard of\n")


@pytest.mark.parametrize("code", Exit)
def test_each_exit_code_is_documented(code: Exit) -> None:
    """`--help` and the page of the command line name the same ones."""
    assert f"{code.value} " in WORDS
    assert f"\n| {code.value} | " in (ROOT / "docs/cli.md").read_text()
