"""The commands of a day, typed against a running `rekindle dev`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import begun

REKINDLE = str(Path(sys.executable).parent / "rekindle")
JOB = """
apiVersion: rekindle.io/v1
kind: TrainingJob
metadata: {name: idle, labels: {subHealthyStrategy: hotSwitch}}
spec:
  pods: 2
  ranksPerPod: 1
  trainingSide: mindio
  command: [sh, -c, "echo I train; exec sleep 1000"]
"""


class Shell:
    """A terminal in the directory of a running `rekindle dev`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("REKINDLE_", "TEMPORAL_"))}

    def __call__(self, *arguments: str, code: int = 0, standard_input: str = "") -> str:
        found, said = asyncio.run(self._typed(arguments, standard_input))
        assert found == code, said
        return said

    async def _typed(self, arguments: tuple[str, ...], standard_input: str) -> tuple[int | None, str]:
        environment = {**self.environment, "COLUMNS": "200"}
        command = await begun(arguments, environment, self.directory, standard_input)
        async with asyncio.timeout(60):
            output, errors = await command.communicate()
        return command.returncode, (output + errors).decode()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output", "json"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yields a running `rekindle dev`. It is stopped by Ctrl-C at the end, and none of its processes remains."""
    shell = Shell(tmp_path_factory.mktemp("dev"))
    ports = [f"--{name}-port=0" for name in ("temporal", "ui", "gateway")]
    with subprocess.Popen(
        [REKINDLE, "dev", *ports], cwd=shell.directory, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdout is not None
        assert "rekindle is running" in dev.stdout.readline()
        (shell.directory / "job.yaml").write_text(JOB)
        shell("submit", "job.yaml")
        yield shell
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    assert not (shell.directory / ".rekindle" / "dev.json").exists()


def until(found: Callable[[], Any]) -> Any:
    """Types a command until it shows what is looked for."""
    for _ in range(300):
        if shown := found():
            return shown
        time.sleep(0.2)
    raise AssertionError("it was never shown")


def registered(shell: Shell) -> Any:
    """The jobs as listed, once the new one is among them."""
    return until(lambda: [row for row in shell.json("jobs") if row["name"] == "idle"])


def test_a_submitted_job_is_listed_and_shown(shell: Shell) -> None:
    """Name, id, state and policy of a job are there for people and for machines."""
    (row,) = registered(shell)
    assert row["name"] == "idle"
    page = shell("show", "idle")
    assert "sub-health policy: hotSwitch" in page
    assert page.splitlines()[0].endswith(": starting")  # no manager of it ever attached
    assert shell.json("show", row["id"])["state"]["job"]["name"] == "idle"
    assert shell.json("policy", "show", "idle") == {"policy": "hotSwitch", "owner": "hotSwitch", "downgrade": None}


def test_all_jobs_are_seen_at_a_glance(shell: Shell) -> None:
    """A job that never trained has no step and no goodput; the view fits into 80 columns; JSON is printed once only."""
    registered(shell)
    (line,) = (line for line in shell.json("top", "--once") if line["name"] == "idle")
    assert (line["state"], line["step"], line["step_seconds"], line["goodput"], line["recovery"]) == (
        "starting",
        None,
        None,
        0.0,
        "",
    )
    page = shell("top", "--once", "--sort", "goodput")
    assert "job" in page
    assert "idle" in page
    assert "--output: json needs --once" in shell("top", "--output", "json", code=2)


def test_time_of_a_job_that_never_trained_is_start_up(shell: Shell) -> None:
    """The report of one job and that of all jobs agree, and wrong options are refused by name."""
    (row,) = registered(shell)
    (whole,) = shell.json("report", row["id"])
    seconds = {share["bucket"]: share["seconds"] for share in whole["buckets"]}
    assert seconds["start-up"] == whole["seconds"] > 0
    assert (whole["goodput"], whole["incidents"]["count"], whole["lost_price"]) == (0.0, 0, None)
    everything, *jobs = shell.json("report", "--since", "1h", "--price", "2.5")
    assert everything["name"] == "all jobs"
    assert "idle" in [one["name"] for one in jobs]
    assert everything["lost_price"] > 0
    assert "--since: " in shell("report", "idle", "--since", "0s", code=2)
    assert "--since" in shell("report", "idle", "--since", "soon", code=2)
    assert "--price: -1.0 is not accepted" in shell("report", "idle", "--price", "-1", code=2)
    assert "nobody" in shell("report", "nobody", code=2)


def test_logs_of_a_pod_are_printed(shell: Shell) -> None:
    """The output of a pod can be read; the error for an unknown pod lists the pods of the job."""
    until(lambda: "I train" in shell("logs", "idle", "--pod", "idle-worker-1"))
    assert "idle-worker-0" in shell("logs", "idle", "--pod", "nobody", code=2)


def test_a_job_whose_pods_wait_says_so(shell: Shell) -> None:
    """A job that asks for more than a node has is waiting, in the list and on its page, which has the scheduler's message."""
    shell("submit", "-", standard_input=JOB.replace("name: idle", "name: big").replace("ranksPerPod: 1", "ranksPerPod: 9"))
    listed = {"name": "big", "phase": "waiting: 2 of 2 pods have no node"}
    until(lambda: any(listed.items() <= row.items() for row in shell.json("jobs")))
    assert "waiting: big-worker-1: 0/3 nodes are available: 3 Insufficient accelerators." in shell("show", "big")
    shell("delete", "big")


def test_a_command_that_cannot_start_is_said(shell: Shell) -> None:
    """The page of a job whose command is mistyped names the command; its end is in its history, and its logs stay."""
    mistyped = JOB.replace("name: idle", "name: mistyped").replace("[sh, -c", "[shh, -c")
    shell("submit", "-", standard_input=mistyped)
    until(lambda: any(row["name"] == "mistyped" for row in shell.json("jobs")))
    until(lambda: "cannot start 'shh'" in shell("show", "mistyped"))
    until(lambda: shell.json("show", "mistyped")["state"]["history"])
    shell("delete", "mistyped")
    until(lambda: any(row["name"] == "mistyped" and row["phase"] == "ended" for row in shell.json("jobs", "--all")))
    assert "rekindle history mistyped" in shell("show", "mistyped", code=2)
    assert "cannot start 'shh'" in shell("history", "mistyped")


def test_logs_of_pods_that_are_gone_are_kept(shell: Shell) -> None:
    """The output of a pod can be read after the pod was replaced, and after its job was deleted."""
    dying = JOB.replace("name: idle", "name: dying").replace("exec sleep 1000", "exit 3")
    shell("submit", "-", standard_input=dying)
    until(lambda: "gone (uid" in (printed := shell("logs", "dying", "--pod", "dying-worker-1")) and printed.count("I train") > 1)
    shell("delete", "dying")
    until(lambda: all(row["name"] != "dying" for row in shell.json("jobs")))
    assert "== dying-worker-1, gone (uid" in shell("logs", "dying")


def test_nodes_turn_sub_healthy_and_well_again(shell: Shell) -> None:
    """`fault inject` and `fault clear` change what `nodes` shows; an unknown node is bad input."""
    shell("fault", "inject", "node-2", "--message", "link is slow")
    assert [node["health"] for node in shell.json("nodes")][2] == "sub-healthy: 80E18005 link is slow"
    shell("fault", "clear", "node-2")
    assert [node["health"] for node in shell.json("nodes")][2] == "healthy"
    assert "node-9" in shell("fault", "inject", "node-9", code=2)


def test_a_node_is_drained_and_taken_back(shell: Shell) -> None:
    """A node without a rank is cordoned, and is left at once; one with a rank that can never move is refused and not touched."""
    registered(shell)
    assert "node-2 is drained" in shell("drain", "node-2")
    assert [node["health"] for node in shell.json("nodes")][2] == "cordoned"
    assert "node-2 takes pods again" in shell("drain", "node-2", "--undo")
    (rank,) = (node["name"] for node in shell.json("nodes") if "idle-worker-1" in node["pods"])
    assert "MindIO needs an AscendJob" in shell("drain", rank, code=4)
    assert [node["health"] for node in shell.json("nodes")] == ["healthy"] * 3


def test_requests_are_refused_with_an_exit_code_that_says_why(shell: Shell) -> None:
    """Bad input is 2, a refusal 4, and each says what is wrong; nothing to lift is no error."""
    registered(shell)
    assert "accepted are 0 to 1" in shell("hot-switch", "idle", "--pod-rank", "5", code=2)
    assert "healthy" in shell("hot-switch", "idle", "--pod-rank", "1", code=4)
    assert "not attached" in shell("hot-switch", "idle", "--pod-rank", "1", "--force", code=4)
    assert "is not a registered job" in shell("hot-switch", "nobody", "--pod-rank", "1", code=2)
    assert "nothing to lift" in shell("policy", "lift", "idle")


def test_the_name_of_a_running_job_is_taken(shell: Shell) -> None:
    """A second job of the same name is refused, and the message says what to do."""
    assert "delete it or choose another name" in shell("submit", "job.yaml", code=4)


def test_a_deleted_job_is_gone(shell: Shell) -> None:
    """`delete` ends the job's pods and its row."""
    registered(shell)
    shell("delete", "idle")
    until(lambda: all(row["name"] != "idle" for row in shell.json("jobs")))
