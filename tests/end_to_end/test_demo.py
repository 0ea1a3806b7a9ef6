"""The demo as a user types it: its last line for machines, its panel for people, its exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REKINDLE = Path(sys.executable).parent / "rekindle"
NEEDED = {
    "mode",
    "verdict",
    "ladder",
    "policy_after",
    "steps_lost",
    "parameters_equal",
    "pause_seconds",
    "first_order_seconds",
    "total_seconds",
    "switched",
    "workflow_id",
}


def demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(REKINDLE), "demo", "hot-switch", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.timeout(400)
def test_no_spare_node_leaves_training_untouched(tmp_path: Path) -> None:
    """The last line is one object with everything in it: ignored, in the scheduler's own words, and training was not touched."""
    done = demo(tmp_path, "--output", "json", "--no-spare", "--steps", "60")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= NEEDED
    assert (result["mode"], result["verdict"], result["policy_after"]) == ("hot switch", "ignored", "ignore")
    assert "nodes are available" in result["reason"]
    assert (result["parameters_equal"], result["steps_lost"], result["switched"]) == (True, 0, [])


@pytest.mark.timeout(400)
def test_four_pods_and_a_panel_for_people(tmp_path: Path) -> None:
    """Without a terminal the demo ends by itself, and says that the parameters are equal and how long the pause was."""
    done = demo(tmp_path, "--pods", "4", "--pod-rank", "3", "--steps", "120", "--seed", "11")
    assert done.returncode == 0, done.stderr + done.stdout
    for words in ("recovered", "equal bit for bit", "pause of training", "Temporal UI", "rank 3"):
        assert words in done.stdout, done.stdout
