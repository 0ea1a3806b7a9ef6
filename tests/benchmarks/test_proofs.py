"""The benchmark of what proofs cost still runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.costly


def test_a_short_job_says_what_its_proofs_cost(tmp_path: Path) -> None:
    """The last line has the seconds of comparisons, of the rehearsal and of the job."""
    launcher = [str(Path(sys.executable).with_name("rekindle-train")), "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, "-m", "benchmarks.proofs", "--job", "--steps=4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REKINDLE_JOB_DIR": str(tmp_path)},
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["job"] > found["rehearsal"] > 0
    assert found["comparisons"] > 0
