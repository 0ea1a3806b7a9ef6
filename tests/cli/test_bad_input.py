"""The command line refuses bad input by the name of the field, before anything starts, with an exit code for scripts."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from rekindle.cli import app, exits
from rekindle.cli.ports import free_ports
from rekindle.cli.terminal import problems
from rekindle.client import Rekindle as Client
from rekindle.errors import BadInput, Conflict, Invalid, NotMoved, Refused, RekindleError
from rekindle.settings import read_settings
from rekindle.temporal import connect

PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "REKINDLE_"))}


@dataclass(frozen=True)
class Done:
    returncode: int
    stderr: str


class Rekindle(Protocol):
    def __call__(self, *arguments: str, standard_input: str = "", **environment: str) -> Done: ...


@pytest.fixture
def rekindle(short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rekindle:
    """Runs the command in this process, in a directory of its own. Bad input is refused before anything starts."""

    def run(*arguments: str, standard_input: str = "", **environment: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(standard_input))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return Done(app.run(arguments), capsys.readouterr().err)

    monkeypatch.chdir(short_path)
    for name in set(os.environ).difference(PLAIN):
        monkeypatch.delenv(name)
    monkeypatch.setattr(problems, "width", 200)
    return run


@pytest.mark.parametrize(
    ("arguments", "field", "accepted"),
    [
        (["--pods", "3"], "--pods", "2 or 4"),
        (["--pod-rank", "2"], "--pod-rank", "0 to 1"),
        (["--steps", "5"], "--steps", "20 or more"),
        (["--at-step", "0"], "--at-step", "1 to 195"),
        (["--steps", "20", "--at-step", "16"], "--at-step", "1 to 15"),
        (["--no-spare", "--resume-fails"], "--no-spare", "one of them"),
        (["--seed", "x"], "--seed", "a whole number"),
        (["--seed", "4294967296"], "--seed", "0 to 4294967295"),
    ],
)
def test_the_demo_names_the_option_that_is_wrong(rekindle: Rekindle, arguments: list[str], field: str, accepted: str) -> None:
    """A wrong option of the demo is refused with what is accepted, exit code 2, and nothing is started."""
    done = rekindle("demo", "hot-switch", *arguments)
    assert done.returncode == 2, done.stderr
    assert field in done.stderr
    assert accepted in done.stderr


@pytest.mark.parametrize(
    ("arguments", "field", "accepted"),
    [
        (["in-place", "--rank", "4"], "--rank", "0 to 3"),
        (["online-retry", "--ranks-at-once", "3"], "--ranks-at-once", "1 or 2"),
        (["process-rescheduling", "--ranks-at-once", "2"], "--ranks-at-once", "--pods 4"),
        (["process-rescheduling", "--ranks-at-once", "3"], "--ranks-at-once", "1 or 2"),
        (["process-rescheduling", "--pods", "3"], "--pods", "2 or 4"),
        (["in-place", "--at-step", "196"], "--at-step", "1 to 195"),
        (["in-place", "--fault", "rain"], "--fault", "freeze"),
        (["link-failover", "--rank", "4"], "--rank", "0 to 3"),
        (["link-failover", "--at-step", "141"], "--at-step", "1 to 140"),
        (["link-failover", "--steps", "60"], "--steps", "75 or more"),
        (["link-failover", "--cluster", "kubernetes"], "--cluster", "--cluster local"),
        (["drain", "--all-nodes", "--no-spare"], "--all-nodes", "one of them"),
        (["drain", "--pod-rank", "2"], "--pod-rank", "0 to 1"),
        (["elastic", "--pods", "2"], "--pods", "use 4"),
        (["elastic", "--at-step", "156"], "--at-step", "1 to 155"),
        (["process-rescheduling", "--no-spare", "--standby"], "--standby", "on a spare node"),
    ],
)
def test_the_demos_of_process_faults_name_the_option_that_is_wrong(
    rekindle: Rekindle, arguments: list[str], field: str, accepted: str
) -> None:
    """A wrong option of these demos is refused with what is accepted, exit code 2, and nothing is started."""
    done = rekindle("demo", *arguments)
    assert done.returncode == 2, done.stderr
    assert field in done.stderr
    assert accepted in done.stderr


MISSPELT = (
    "apiVersion: rekindle.io/v1\nkind: TrainingJob\nmetadata: {name: gpt}\nspec: {pods: 2, ranksPerPodd: 2, command: [x]}\n"
)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("scale gpt --replicas 1.5", "--replicas: '1.5' is not accepted (accepted: a whole number)"),
        ("hot-switch gpt --pod-rank 0.4", "--pod-rank: '0.4' is not accepted (accepted: a whole number)"),
        ("incident gpt 1.5", "NUMBER: '1.5' is not accepted (accepted: a whole number)"),
        ("dev --nodes 2.6", "--nodes: '2.6' is not accepted (accepted: a whole number)"),
        ("dev --ui-port 8233.4", "--ui-port: '8233.4' is not accepted (accepted: a whole number)"),
        ("dev --metrics-port 9100.4", "--metrics-port: '9100.4' is not accepted (accepted: a whole number)"),
    ],
)
def test_a_number_is_not_rounded(rekindle: Rekindle, arguments: str, words: str) -> None:
    """A job would get another size, or another pod would be moved, than was asked for."""
    done = rekindle(*arguments.split())
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "approve gpt --mode",
        "deny gpt --mode",
        "logs gpt --pod",
        "fault inject node-0 --link",
        "uninstall --namespace",
        "plan proceed switch --leaf",
    ],
)
def test_an_option_that_is_empty_does_not_count_as_left_out(rekindle: Rekindle, arguments: str) -> None:
    """A variable of the shell is not set: any mode would be approved, and another fault injected."""
    done = rekindle(*arguments.split(), "")
    assert done.returncode == 2
    assert f"{arguments.rpartition(' ')[2]}: an empty text is not accepted" in done.stderr


@pytest.mark.parametrize("file", ["job.yaml", "-"])
def test_an_unknown_field_of_a_job_file_is_named(rekindle: Rekindle, short_path: Path, file: str) -> None:
    """A job with a misspelt field, from a file or from standard input, is refused with the one that was meant, exit code 2."""
    (short_path / "job.yaml").write_text(MISSPELT)
    done = rekindle("submit", file, standard_input=MISSPELT)
    assert done.returncode == 2, done.stderr
    assert "ranksPerPodd: unknown field, did you mean ranksPerPod?" in done.stderr


def test_a_file_that_is_not_there_is_named(rekindle: Rekindle) -> None:
    """The error contains the name, whatever characters it has."""
    done = rekindle("submit", "[job].yaml")
    assert done.returncode == 2, done.stderr
    assert "[job].yaml cannot be read" in done.stderr


def test_no_control_plane_is_said_with_how_to_start_one(short_path: Path) -> None:
    """A command without a Temporal service names the address and `rekindle dev`, and exits with code 3."""
    command = [str(Path(sys.executable).parent / "rekindle"), "jobs"]
    environment = {**PLAIN, "TEMPORAL_ADDRESS": "127.0.0.1:1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=short_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert "rekindle dev" in done.stderr


@pytest.mark.parametrize(("text", "seconds"), [("300", 300), ("12.5", 12.5), ("PT5M", 300)])
def test_a_duration_is_given_in_seconds_or_as_a_duration(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    """A variable is always a text: its message said that seconds are accepted, and refused them."""
    monkeypatch.setenv("REKINDLE_LIMITS__PAUSE", text)
    monkeypatch.setenv("REKINDLE_DRAIN_HELD", text)
    settings = read_settings()
    assert settings.limits.pause == settings.drain_held == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("REKINDLE_LOG_LEVEL", "loud", "'DEBUG', 'INFO', 'WARNING' or 'ERROR' (got 'loud')"),
        ("REKINDLE_LIMITS__PAUSE", "soon", "REKINDLE_LIMITS.pause: must be a number of seconds"),
        ("REKINDLE_NAMESPACES", "training", "REKINDLE_NAMESPACES: not JSON"),
        ("REKINDLE_DRAIN_HELD", "P4000D", "REKINDLE_DRAIN_HELD: input should be less than or equal to 3650 days"),
        ("TEMPORAL_TLS_CLIENT_CERT_PATH", "/nowhere", "TEMPORAL_*"),
        ("TEMPORAL_TLS_CLIENT_CERT_DATA", "half of a pair", "both client cert and private key"),
        ("TEMPORAL_PROFILE", "nobodys", "Profile 'nobodys' not found"),
        ("TEMPORAL_ADDRESS", "here:there", "invalid port number"),
        ("TEMPORAL_ADDRESS", "https://here:7233", "'https://here:7233' is not accepted (accepted: HOST:PORT"),
        ("TEMPORAL_ADDRESS", "here", "'here' is not accepted (accepted: HOST:PORT"),
        ("REKINDLE_TEMPORAL_UI", "https://me:secret@temporal", "(got 'https://temporal')"),
        ("REKINDLE_PLATFORMS", '["10.0.7.1/24"]', "no network such as 10.0.7.0/24: 10.0.7.1/24 has host bits set"),
    ],
)
def test_a_setting_that_means_nothing_is_named(rekindle: Rekindle, name: str, value: str, words: str) -> None:
    """A variable of the environment is bad input like any other: its name, what is accepted, exit code 2."""
    done = rekindle("jobs", **{name: value})
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["dev"], ["demo", "hot-switch"]])
def test_a_setting_that_means_nothing_is_named_before_anything_starts(
    rekindle: Rekindle, short_path: Path, command: list[str]
) -> None:
    """A setting of the processes that would be started is refused as well."""
    done = rekindle(*command, REKINDLE_LOG_LEVEL="loud", TMPDIR=str(short_path))
    assert (done.returncode, "REKINDLE_LOG_LEVEL" in done.stderr, "log:" in done.stderr) == (2, True, False), done.stderr
    assert list(short_path.iterdir()) == []


def test_no_cluster_is_said_with_its_socket(rekindle: Rekindle) -> None:
    """A command without a local cluster names the socket, and exits with code 3."""
    done = rekindle("nodes")
    assert done.returncode == 3, done.stderr
    assert "cluster.sock" in done.stderr


def test_a_command_of_the_local_cluster_is_not_for_another_one(rekindle: Rekindle) -> None:
    """A command of the local cluster refuses another cluster, and names kubectl. In a pod of the control plane it used to say how
    to start a cluster there."""
    done = rekindle("nodes", "release", "node-1", REKINDLE_CLUSTER="kubernetes")
    assert (done.returncode, "use kubectl" in done.stderr, "start one" in done.stderr) == (3, True, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "0"], ["--nodes", ">= 1"]),
        (["--accelerators", "1025"], ["--accelerators", "<= 1024"]),
        (["--links", "--cluster", "kubernetes"], ["--links", "--cluster local"]),
        (["--state-dir", "a-file"], ["--state-dir", "a-file cannot be used", "a directory"]),
        (["--state-dir", "a-file/below"], ["--state-dir", "a-file/below cannot be used", "a directory"]),
        (["--state-dir", "/proc/nowhere"], ["--state-dir", "/proc/nowhere cannot be used", "a directory"]),
        (["--state-dir", "x" * 110], ["--state-dir", "at most 107"]),
        (["--state-dir", "a-state"], ["--state-dir", "a-state cannot be used", "logs", "a directory"]),
    ],
)
def test_what_cannot_be_started_is_named_before_anything_starts(
    rekindle: Rekindle, short_path: Path, arguments: list[str], words: list[str]
) -> None:
    """A wrong option of `rekindle dev` is refused in one line. Nothing starts, and no file is created."""
    (short_path / "a-file").write_text("")
    (short_path / "a-state").mkdir()
    (short_path / "a-state" / "logs").write_text("")
    ports = [f"--{name}-port=0" for name in ("temporal", "ui", "gateway")]
    done = rekindle("dev", *ports, *arguments)
    assert done.returncode == 2, done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert {path.name for path in short_path.rglob("*")} == {"a-file", "a-state", "logs"}


def test_a_name_that_is_no_text_is_that_of_no_job(rekindle: Rekindle) -> None:
    """A byte that is not UTF-8 is bad input for every command that looks for a job, and no server is asked."""
    done = rekindle("delete", "gpt\udcff")
    assert (done.returncode, "no job is named 'gpt\\udcff'" in done.stderr) == (2, True), done.stderr


async def test_an_empty_name_is_that_of_no_job() -> None:
    """A job whose name the server does not list is not found by an empty name. No server is asked."""
    with pytest.raises(BadInput, match="no job is named ''"):
        await Client(await connect(f"127.0.0.1:{free_ports(1)[0]}", lazy=True)).find("")


@pytest.mark.parametrize("command", ["nodes", "jobs"])
def test_where_a_stack_was_looked_for_is_said(rekindle: Rekindle, short_path: Path, command: str) -> None:
    """A command that finds no stack names the state directory and the variable that sets it."""
    done = rekindle(command, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert done.returncode == 3, done.stderr
    assert "REKINDLE_STATE_DIR" in done.stderr
    assert str(short_path / ".rekindle") in done.stderr


@pytest.mark.parametrize("left", ['{"temporal": "127', '{"temporal": "127.0.0.1:7233"}', "\xff"])
def test_what_does_not_say_where_a_stack_is_is_named(rekindle: Rekindle, short_path: Path, left: str) -> None:
    """A file of another release, or one that a full disk truncated, is named, with exit code 3."""
    (short_path / ".rekindle").mkdir()
    (short_path / ".rekindle" / "dev.json").write_text(left, encoding="latin-1")
    done = rekindle("jobs")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "dev.json does not say where `rekindle dev` is" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(Invalid("spec"), 2), (Conflict("the name is taken"), 4), (Refused("busy"), 4), (NotMoved("eth1 is down"), 1)],
)
def test_what_the_cluster_refuses_has_its_exit_code(error: RekindleError, code: int) -> None:
    """An object that the cluster does not accept is bad input, an existing one a refusal; 1 is for an attempt that failed."""
    assert exits.of(error) == code


def test_a_check_that_nobody_knows_is_named(rekindle: Rekindle) -> None:
    """An unknown check of a stress test is refused with those that are accepted, before any server is asked."""
    for ops, wrong in (("compute,fire", "'fire'"), ("", "''"), ("compute,", "''")):
        done = rekindle("stress-test", "gpt", "--ops", ops)
        assert done.returncode == 2, done.stderr
        assert f"--ops: {wrong} is no check, accepted are compute, p2p, memory" in done.stderr
    done = rekindle("stress-test", "gpt", "--node", "")
    assert (done.returncode, "--node: empty" in done.stderr) == (2, True), done.stderr


def test_letters_that_the_terminal_has_not_end_no_command(short_path: Path) -> None:
    """The page of a recovery has a tick in each line, and names may contain any letter."""
    (file := short_path / "风扇.yaml").write_text("apiVersion: rekindle.io/v1\nkind: Rules\nspec: {}\n")
    command = [sys.executable, "-c", "from rekindle.cli.app import main; main()", "check", str(file)]
    done = subprocess.run(command, env={**PLAIN, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b"??.yaml: rules: 14" in done.stdout
