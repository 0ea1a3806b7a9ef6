"""The program that tries recoveries on an accelerator, on processors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.costly


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "benchmarks.accelerator", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS, env=here)


def test_an_error_and_a_kill_are_tried_on_processors(tmp_path: Path) -> None:
    """Each row is compared with an undisturbed run, and the file has what the table shows."""
    done = run("--device", "cpu", "--only", "exception,kill", "--output", str(tmp_path / "found.json"))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert [(row["name"], row["result"]) for row in found["rows"]] == [("exception", "ok"), ("kill", "ok")]
    assert all("parameters and moments equal" in row["words"] and row["figures"]["seconds"] > 0 for row in found["rows"])


def test_without_a_device_it_says_so_and_ends_well() -> None:
    """Nothing is run: the exit code is 0, and the line says what can be run."""
    done = run(CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no CUDA device here: nothing was run; `--device cpu` runs the same on processors\n"


def test_a_row_that_there_is_not_is_refused() -> None:
    """The message names it and the rows that there are."""
    done = run("--only", "rain")
    assert done.returncode == 2
    assert "'rain' is no row; accepted are deterministic, exception, kill" in done.stderr
