"""The demo as a machine reads it: its last line and its exit code. Its panel for people is looked at from the wheels."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    "cluster",
}
SAVED = [("dying gasp", "escalate"), ("job rescheduling", "recovered")]
CHEAPER = ("online retry", "in-place recovery", "process rescheduling", "dying gasp", "pod rescheduling")
FELL = [*((mode, "escalate") for mode in CHEAPER), ("job rescheduling", "recovered")]
IN_PART = [("dying gasp", "escalate"), ("pod rescheduling", "recovered")]
"""Ladders of restarts that lose no step."""

ELSEWHERE = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_NAMESPACE": "elsewhere", "TEMPORAL_TLS": "true"}
"""Another Temporal, which the environment names and which is not asked."""


def demonstrated(directory: Path, arguments: list[str]) -> dict[str, Any]:
    """The object that a demo prints as its last line."""
    command = [str(REKINDLE), "demo", *arguments, "--output", "json", "--steps", "60"]
    environment = {**os.environ, **ELSEWHERE}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= NEEDED
    return result


@pytest.mark.timeout(400)
@pytest.mark.same_path("a demo, as a machine reads it")
def test_no_spare_node_leaves_training_untouched(tmp_path: Path) -> None:
    """The fault is ignored with the message of the real scheduler, and training is not touched."""
    result = demonstrated(tmp_path, ["hot-switch", "--cluster", "kubernetes", "--no-spare"])
    assert (result["mode"], result["verdict"], result["policy_after"]) == ("hot switch", "ignored", "ignore")
    assert "0/2 nodes are available" in result["reason"]
    assert result["cluster"] == "kubernetes"
    assert (result["parameters_equal"], result["steps_lost"], result["switched"]) == (True, 0, [])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("arguments", [["--all-nodes"], ["--cluster", "kubernetes"], ["--no-spare"]], ids=lambda one: one[-1])
@pytest.mark.same_path("a demo, as a machine reads it")
def test_the_demo_of_a_drain_says_which_nodes_were_left(tmp_path: Path, arguments: list[str]) -> None:
    """One, or all of them in turn; without a spare the drain waits. No step is lost in any case."""
    result = demonstrated(tmp_path, ["drain", *arguments])
    assert len(result["nodes"]) == (3 if "--all-nodes" in arguments else 1)
    assert result["drained"] is ("--no-spare" not in arguments)
    assert (result["parameters_equal"], result["steps_lost"], result["policy_after"]) == (True, 0, "hotSwitch")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("arguments", "ladder"),
    [
        (["online-retry", "--ranks-at-once", "2"], [("online retry", "recovered")]),
        (["in-place", "--fault", "exception", "--no-spare"], [("in-place recovery", "recovered")]),
        (["process-rescheduling", "--no-spare"], [("process rescheduling", "escalate"), ("job rescheduling", "recovered")]),
        (["process-rescheduling", "--cluster", "kubernetes"], [("process rescheduling", "recovered")]),
        (["dying-gasp", "--pods", "4"], SAVED),
        (["dying-gasp", "--cluster", "kubernetes"], SAVED),
        (["pod-rescheduling", "--pods", "4"], IN_PART),
        (["pod-rescheduling", "--cluster", "kubernetes"], IN_PART),
        (["ladder"], FELL),
    ],
    ids=[
        "online-retry",
        "in-place",
        "process-rescheduling",
        "process-rescheduling-kubernetes",
        "dying-gasp",
        "dying-gasp-kubernetes",
        "pod-rescheduling",
        "pod-rescheduling-kubernetes",
        "ladder",
    ],
)
@pytest.mark.same_path("a demo, as a machine reads it")
def test_the_demo_of_a_process_fault_is_one_object_too(
    tmp_path: Path, arguments: list[str], ladder: list[tuple[str, str]]
) -> None:
    """The result object has the keys of a hot switch, the time until the fault was detected, and the time until the next step."""
    result = demonstrated(tmp_path, arguments)
    assert [(step["mode"], step["verdict"]) for step in result["ladder"]] == ladder
    assert result["parameters_equal"]
    assert ladder not in (SAVED, FELL, IN_PART) or result["steps_lost"] == 0
    if ladder == IN_PART:
        _only_one_pod_is_another_one(result)
    assert 0 < result["detection_seconds"] < result["fault_to_step_seconds"]


def _only_one_pod_is_another_one(result: dict[str, Any]) -> None:
    """Checks that the processes of all ranks are other ones, and that all pods but that of rank 2 are the same."""
    moved = {one["rank"]: (one["before"], one["after"]) for one in result["switched"]}
    assert moved.keys() == {0, 1, 2, 3}
    assert all(before["pid"] != after["pid"] for before, after in moved.values())
    lost = moved[2][0]["pod"]
    assert all((before["pod"] != after["pod"]) == (before["pod"] == lost) for before, after in moved.values())
