"""The comparison of an account with step logs still runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import ALL

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.skipif(not ALL, reason="takes three minutes"), pytest.mark.timeout(300)]


def test_the_account_of_a_job_with_some_faults_equals_its_step_logs() -> None:
    """Differences above a millisecond for each stretch end the comparison with an error, and so does unknown time."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.account", "--faults", "2"],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "2 faults were injected from outside" in done.stdout
