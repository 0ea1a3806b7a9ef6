"""`rekindle-train` in torchrun's place: flags, environment, exit codes, signals. The ranks are small programs without torch."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle_training.launcher.arguments import UsageInvalid, parse
from rekindle_training.launcher.own_manager import ends_again_and_again

JOB = {"MINDX_TASK_ID": "a-job", "REKINDLE_POD_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
ENDS_SECONDS = 60

PREAMBLE = """
import os, signal, sys, time

def say(text):  # in one write: all ranks share the pipe
    os.write(1, f"{text}\\n".encode())
"""


Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launch]:
    """Starts a launcher whose ranks run a program. The fixture kills what a failed test leaves."""
    started: list[subprocess.Popen[str]] = []

    def launch(program: str, *flags: str, **options: Any) -> "subprocess.Popen[str]":
        script = tmp_path / "rank.py"
        script.write_text(PREAMBLE + textwrap.dedent(program))
        command = [sys.executable, "-m", "rekindle_training.launcher.main", *flags, str(script), "--an-argument"]
        variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        variables |= {} if "--standalone" in flags else JOB
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=ENDS_SECONDS)
    return sorted(output.splitlines())


def test_ranks_get_the_environment_of_torchrun(launcher: Launch) -> None:
    """Every variable that torchrun sets is there, counted from the pod's rank, which the cluster gives."""
    process = launcher(
        "import json; say(json.dumps(dict(os.environ, argv=sys.argv[1:])))",
        "--nnodes=2",
        "--nproc_per_node=2",
    )
    first, second = sorted((json.loads(line) for line in lines(process)), key=lambda found: str(found["RANK"]))
    expected = {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RUN_ID": "a-job",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["RANK"], second["LOCAL_RANK"]) == ("3", "1")
    assert first["argv"] == ["--an-argument"]
    assert process.returncode == 0


def test_a_module_and_a_program_run_as_with_torchrun() -> None:
    """`-m` runs a module and `--no-python` a program; torchrun's other flags are taken in both spellings."""
    base = [
        sys.executable,
        "-m",
        "rekindle_training.launcher.main",
        "--max_restarts=3",
        "--rdzv-backend=c10d",
        "--monitor-interval=1",
    ]
    module = subprocess.run(
        [*base, "-m", "this"], env=os.environ | JOB | {"REKINDLE_POD_RANK": "0"}, capture_output=True, check=True
    )
    program = subprocess.run(
        [*base, "--no-python", "echo", "it ran"],
        env=os.environ | JOB | {"REKINDLE_POD_RANK": "0"},
        capture_output=True,
        check=True,
    )
    assert b"Zen of Python" in module.stdout
    assert program.stdout == b"it ran\n"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--nnodes=0", "x.py"], r"--nnodes 0: accepted is a whole number"),
        (["--nnodes=1:4", "x.py"], r"--nnodes 1:4: accepted"),
        (["--nproc-per-node=many", "x.py"], r"--nproc-per-node many: accepted are .* cpu, gpu and auto"),
        (["--nnodes=2", "--node-rank=2", "x.py"], r"--node-rank 2: accepted is a whole number from 0 to 1"),
        (["--standalone", "--nnodes=2", "x.py"], r"--nnodes 2: --standalone runs on one machine"),
        (["--module", "--no-python", "x.py"], r"--module and --no-python contradict"),
        (["--no-python", "--start-method=fork", "x.py"], r"--no-python and --start-method fork contradict"),
        (["--rdzv-backend=etcd", "x.py"], r"--rdzv-backend etcd: .*accepted are static, c10d and rekindle"),
        (["--redirects=3", "x.py"], r"--redirects 3 needs --log-dir"),
        (["--redirects=9", "--log-dir=/tmp", "x.py"], r"--redirects 9: accepted are 0"),
        (["--tee=3", "x.py"], r"--tee 3: accepted is 0"),
        (["--start-method=magic", "x.py"], r"--start-method.*magic.*'spawn', 'fork'.*--help explains the flags"),
        (["--unheard-of", "x.py"], r"--unheard-of.*accepted flags are .*--nnodes"),
        (["--spare=1", "x.py"], r"--spare=1, did you mean --spares\?"),
        (["--nnodes=1"], r"required: training_script; rekindle-train --help explains the flags"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_accepted(flags: list[str], named: str) -> None:
    """Unknown and contradictory flags are refused before anything starts."""
    with pytest.raises(UsageInvalid, match=named):
        parse(flags, {"MINDX_TASK_ID": "a-job"})


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--spares=-1", "x.py"], "--spares -1: accepted is a whole number from 0"),
        (["--spares=1", "--no-python", "x"], "--no-python and --spares contradict"),
        (["--max-restarts=often", "x.py"], "--max-restarts often"),
        (["--stall-seconds=1h", "x.py"], "--stall-seconds 1h"),
    ],
)
def test_a_wrong_flag_of_a_job_without_a_control_plane_is_named(flags: list[str], named: str) -> None:
    """Flags that only the launcher's own manager can honour are checked."""
    with pytest.raises(UsageInvalid, match=named):
        parse(flags, {})


def test_flags_of_torchrun_mean_the_same_here() -> None:
    """The meeting point may be written in each of torchrun's ways."""
    assert parse(["x.py"], {}).standalone
    endpoint = parse(["--rdzv-endpoint=host:1234", "--rdzv-id=name", "--node-rank=0", "x.py"], {"MINDX_TASK_ID": "a-job"})
    assert (endpoint.master_addr, endpoint.master_port, endpoint.run_id) == ("host", 1234, "name")
    address = parse(["--master_addr=host", "--master_port=1234", "x.py"], {"MINDX_TASK_ID": "a-job"})
    assert (address.master_addr, address.master_port) == ("host", 1234)
    assert parse(["--nproc-per-node=cpu", "x.py"], {}).nproc_per_node == os.cpu_count()


def test_the_first_failure_decides_and_ends_the_others(launcher: Launch, tmp_path: Path) -> None:
    """The exit code is that of the first rank that failed; the other ranks do not survive it."""
    os.mkfifo(tmp_path / "told")
    program = f"""
        if os.environ["LOCAL_RANK"] == "1":
            open("{tmp_path}/told").read()
            sys.exit(7)
        say(os.getpid())
        open("{tmp_path}/told", "w").close()
        signal.pause()
    """
    process = launcher(program, "--nnodes=2", "--nproc-per-node=2")
    (survivor,) = lines(process)
    assert process.returncode == 7
    assert not Path(f"/proc/{survivor}").exists()


def test_a_rank_that_a_signal_ended_counts_as_shells_count_it(launcher: Launch) -> None:
    """The exit code is 128 and the number of the signal."""
    process = launcher("os.kill(os.getpid(), signal.SIGKILL)", "--nnodes=2")
    lines(process)
    assert process.returncode == 128 + signal.SIGKILL


def test_signals_are_passed_on_and_a_frozen_rank_is_killed(launcher: Launch) -> None:
    """SIGTERM reaches every rank. A stopped rank does not receive it, and is killed after some seconds."""
    program = """
        signal.signal(signal.SIGTERM, lambda *_: (say("told"), sys.exit(0)))
        say(f"ready {os.getpid()} {os.environ['LOCAL_RANK']}")
        while True:
            time.sleep(0.01)
    """
    process = launcher(program, "--nnodes=2", "--nproc-per-node=2")
    assert process.stdout is not None
    pids = {rank: int(pid) for _, pid, rank in (process.stdout.readline().split() for _ in range(2))}
    os.kill(pids["1"], signal.SIGSTOP)
    process.terminate()
    assert lines(process) == ["told"]
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_that_the_launcher_was_told_to_ignore_is_not_passed_on(launcher: Launch) -> None:
    """A launcher under `nohup` outlives its terminal, which signals the ranks as well."""
    program = """
        say(f"ready {os.getpid()}")
        sys.stdin.readline()
        say("done")
    """
    process = launcher(
        program, "--nnodes=2", stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    assert process.stdout is not None
    rank = int(process.stdout.readline().split()[1])
    for told in (process.pid, rank):
        os.kill(told, signal.SIGHUP)
    output, _ = process.communicate("\n", timeout=ENDS_SECONDS)
    assert (process.returncode, output) == (0, "done\n")


def test_a_terminals_interrupt_reaches_each_rank_once_and_nobody_else_complains(launcher: Launch) -> None:
    """A rank that saves its work is not interrupted in that. The manager and the spares print nothing."""
    program = """
        def interrupted(*_):
            say("interrupted")
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
            say(f"ends {os.getpid()}")

        rank = os.environ["RANK"]
        signal.signal(signal.SIGINT, interrupted)
        say("ready")
        while True:
            signal.sigtimedwait((), 0.1)  # pause() may miss a signal that comes just before it
    """
    ours, its = os.openpty()

    def at_a_terminal() -> None:
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    flags = ["--standalone", "--nproc-per-node=2", "--spares=1", "--start-method=fork"]
    process = launcher(program, *flags, stdin=its, start_new_session=True, preexec_fn=at_a_terminal)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    os.write(ours, b"\x03")
    told = sorted(process.stdout.readline() for _ in range(4))
    assert told[2:] == ["interrupted\n"] * 2, told
    for line in told[:2]:
        os.kill(int(line.split()[1]), signal.SIGUSR1)
    output, errors = process.communicate(timeout=ENDS_SECONDS)
    os.close(ours)
    os.close(its)
    assert (told[2:], output) == (["interrupted\n"] * 2, "")
    assert "Traceback" not in errors
    said = [line.split()[2:] for line in errors.splitlines() if "manager started" not in line and "spare parked" not in line]
    assert said == [["rekindle-train", "INFO", "all", "ranks", "stopped", "signal=SIGINT"]]
    assert process.returncode == 128 + signal.SIGINT


def test_a_manager_is_given_up_when_it_ends_again_and_again() -> None:
    """A manager is given up when it ends several times in quick succession, and not for as many ends in a job's whole life."""
    assert not ends_again_and_again([0.0, 1.0, 2.0, 3.0], 4.0)
    assert ends_again_and_again([0.0, 1.0, 2.0, 3.0, 4.0], 5.0)
    assert not ends_again_and_again([0.0, 100.0, 200.0, 300.0, 400.0], 401.0)


def shell_that_trains(folder: Path, on_signal: str) -> Path:
    """Writes a shell script that runs the training, as is usual with `--no-python`. The training prints its process id first."""
    (folder / "inner.py").write_text(
        "import os, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: {on_signal})\n"
        "os.write(1, f'{os.getpid()}\\n'.encode())\n"
        "while True: time.sleep(0.01)\n"
    )
    shell = folder / "shell.sh"
    shell.write_text(f"#!/bin/sh\ntrap '' TERM\n{sys.executable} {folder / 'inner.py'}\nexit $?\n")
    shell.chmod(0o755)
    return shell


def test_what_a_program_started_gets_its_signals(launcher: Launch, tmp_path: Path) -> None:
    """A child of a shell receives the signal although the shell ignores it."""
    process = launcher(
        "", "--nnodes=2", "--no-python", str(shell_that_trains(tmp_path, "(os.write(1, b'told\\n'), os._exit(0))"))
    )
    assert process.stdout is not None
    assert int(process.stdout.readline())
    process.terminate()
    assert lines(process) == ["told"]


def test_what_a_program_leaves_behind_ends_with_it(launcher: Launch, tmp_path: Path) -> None:
    """No process of a rank holds memory of a device after the rank's end."""
    process = launcher("", "--nnodes=2", "--no-python", str(shell_that_trains(tmp_path, "os.kill(os.getppid(), signal.SIGKILL)")))
    assert process.stdout is not None
    inner = os.pidfd_open(int(process.stdout.readline()))
    process.terminate()
    assert select.select([inner], [], [], ENDS_SECONDS)[0] == [inner]
    os.close(inner)


def test_a_script_that_is_not_there_is_a_wrong_argument(launcher: Launch) -> None:
    """The error is reported before anything is started."""
    process = launcher("", "--nnodes=2", "missing.py")
    _, errors = process.communicate(timeout=ENDS_SECONDS)
    assert process.returncode == 2
    assert errors.startswith("rekindle-train: training_script missing.py: there is no such file; accepted is a script")


def test_a_traceback_begins_with_the_script(launcher: Launch) -> None:
    """The traceback begins with the script also where the process was forked."""
    process = launcher("raise ValueError('mine')", "--nnodes=2", "--start-method=fork")
    _, errors = process.communicate(timeout=ENDS_SECONDS)
    first, second = [line for line in errors.splitlines() if "Traceback" in line or "File" in line]
    assert first == "Traceback (most recent call last):"
    assert "rank.py" in second


def test_no_rank_outlives_its_launcher(launcher: Launch) -> None:
    """A launcher that is killed takes its ranks with it, for the kernel ends them."""
    program = """
        say(os.getpid())
        signal.pause()
    """
    process = launcher(program, "--nnodes=2", "--nproc-per-node=2")
    assert process.stdout is not None
    ranks = [os.pidfd_open(int(process.stdout.readline())) for _ in range(2)]
    process.kill()
    process.communicate(timeout=ENDS_SECONDS)
    for rank in ranks:
        assert select.select([rank], [], [], ENDS_SECONDS)[0] == [rank]  # readable once the process has ended
        os.close(rank)


def test_output_is_redirected_to_a_file_for_each_rank(launcher: Launch, tmp_path: Path) -> None:
    """`--redirects 3` writes both streams below --log-dir, by run and rank."""
    program = "say('out'); print('err', file=sys.stderr)"
    process = launcher(program, "--nnodes=2", "--redirects=3", f"--log-dir={tmp_path}/logs")
    assert lines(process) == []
    folder = tmp_path / "logs" / "a-job" / "1"
    assert (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "stderr.log").read_text() == "err\n"


def test_a_log_folder_stays_where_it_was_when_a_script_changes_its_own() -> None:
    """A spare opens its files when it becomes a rank, which is late."""
    assert parse(["--log-dir", "logs", "train.py"], {}).log_dir == Path.cwd() / "logs"


def ends_as(program: str) -> str:
    """Returns the last thing that the program prints."""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=ENDS_SECONDS, check=True)
    return done.stdout.splitlines()[-1]


def test_a_signal_reaches_a_process_that_is_only_beginning() -> None:
    """A signal is not lost although the process that makes the new one ignores it."""
    assert (
        ends_as("""
import os, signal
from rekindle_training.launcher import child
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fork = os.fork
def fork_and_strike():
    if pid := fork():
        os.kill(pid, signal.SIGTERM)
    else:
        while signal.SIGTERM not in signal.sigpending():
            pass
    return pid
os.fork = fork_and_strike
pid = child.fork(lambda: 0, {signal.SIGTERM: signal.SIG_DFL})
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
        == f"{-signal.SIGTERM}"
    )


def test_a_spare_that_nobody_needed_ends_as_its_script_would(tmp_path: Path) -> None:
    """Functions that the script has registered for its end are called."""
    (tmp_path / "rank.py").write_text('import atexit, os; atexit.register(print, "cleaned", flush=True); os.environ["RANK"]')
    assert (
        ends_as(f"""
import os
from rekindle_training.launcher import zygote
pid, way = zygote.start(preload=False)
way.send(zygote.Start("spare", zygote.Program(({str(tmp_path / "rank.py")!r},), interpreted=True), {{}}, is_spare=True))
assert way.recv() == zygote.Waits("spare")
way.send(zygote.End())
os.waitpid(pid, 0)
""")
        == "cleaned"
    )
