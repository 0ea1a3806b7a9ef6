"""`rekindle-train --drill`: what of a script survives is found out by running it, and what does not is named."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle_training import examples
from rekindle_training.launcher.drill import output, written
from rekindle_training.launcher.drill.advice import advise
from rekindle_training.launcher.drill.findings import Finding, Result
from rekindle_training.launcher.drill.traces import Line, Trace, compare
from rekindle_training.launcher.drill_options import CASES
from rekindle_training.launcher.main import main
from tests.training.job import children
from tests.training.processes import Process, Zygote

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("drilled.py"))
EXAMPLES = Path(examples.__path__[0])
SECONDS = 110
IN_A_CLUSTER = {
    "MINDX_TASK_ID": "a-job",
    "MASTER_ADDR": "10.255.255.1",
    "REKINDLE_POD_ROLE": "backup",
    "REKINDLE_POD_RANK": "3",
}

Found = dict[str, Any]
Drill = Callable[..., Awaitable[Found]]


@pytest.fixture
def drill(tmp_path: Path, zygote: Zygote) -> Drill:
    async def drill(*arguments: str, code: int, cases: str = "", **environment: str) -> Found:
        """The object that the drill of these arguments printed, with its cases by their names, and its table as `text`."""
        flags = ["--drill", "--drill-output=json", "--start-method=fork", *([f"--drill-cases={cases}"] if cases else [])]
        printed = tmp_path / "printed.log"
        process = await zygote.run("train", [*flags, *arguments], environment, printed)
        try:
            ended = await process.code(within=SECONDS)
        finally:
            process.kill()
            print(printed.read_text())
        assert ended == code
        *text, last = printed.read_text().splitlines()
        found: Found = json.loads(last)
        return {**found, "cases": {case["case"]: case for case in found["cases"]}, "text": "\n".join(text)}

    return drill


def results(found: Found) -> dict[str, str]:
    return {name: case["result"] for name, case in found["cases"].items()}


def refused(found: Found) -> bool:
    """Returns whether the program has refused the script with an explanation, before any fault."""
    undisturbed = found["cases"]["undisturbed"]
    return undisturbed["result"] == "fails" and bool(undisturbed["said"])


async def test_a_good_script_survives_every_fault(drill: Drill, tmp_path: Path) -> None:
    """The exit code is 0, a cluster around the drill and checkpoints of the script's own are left alone, and runs are kept."""
    own, kept = tmp_path / "own", tmp_path / "kept"
    found = await drill(f"--drill-keep={kept}", SCRIPT, f"--own-checkpoints={own}", code=0, **IN_A_CLUSTER)
    assert results(found) == {"undisturbed": "trains", **dict.fromkeys(CASES, "survives")}
    assert found["survives"]
    assert not own.exists()
    assert {case.name for case in kept.iterdir()} == {"undisturbed", *CASES}
    assert "status report sent code=0" in (kept / "switch" / "output.log").read_text(), "the rank has moved"


async def test_what_stands_between_two_epochs_is_no_difference_of_a_restart(drill: Drill) -> None:
    """A scheduler may step after the epoch that ends with the checkpoint's step. The checkpoint contains that, in a drill as
    well."""
    found = await drill(SCRIPT, "--epoch=4", code=0, cases="restart,kill")
    assert results(found) == {"undisturbed": "trains", "restart": "survives", "kill": "survives"}


@pytest.mark.same_path("an example is drilled")
@pytest.mark.parametrize(
    ("script", "cases"),
    [
        (("gpt.py",), "exception,kill,kill-rank-0,stop,switch,restart"),
        (("ddp.py", "--epochs=4", "--workers=1"), "kill,stop,switch"),
    ],
    ids=["gpt", "ddp"],
)
async def test_an_example_survives(script: tuple[str, ...], cases: str, drill: Drill) -> None:
    """The scripts that people read first survive what they are meant to survive."""
    found = await drill(str(EXAMPLES / script[0]), *script[1:], code=0, cases=cases)
    assert results(found) == {"undisturbed": "trains", **dict.fromkeys(cases.split(","), "survives")}


@pytest.mark.parametrize(
    ("defect", "case", "differs", "advice"),
    [
        ("forgotten scheduler", "kill", "optimizer param_groups [0] lr", "state=[scheduler]"),
        ("batch of the turn before", "kill", "the loss", "not in the turn before"),
        ("generator of its own", "exception", "the loss", "a generator of random numbers of the script's own"),
    ],
)
async def test_a_script_that_diverges_is_found_and_the_object_is_named(
    defect: str, case: str, differs: str, advice: str, drill: Drill
) -> None:
    """A run that ends with exit code 0 and other parameters is called diverged, unless the program has refused the script."""
    found = await drill(SCRIPT, f"--defect={defect}", code=1, cases=case)
    if refused(found):
        return
    (diverged,) = [one for name, one in found["cases"].items() if name != "undisturbed"]
    assert (diverged["result"], diverged["exit_code"], diverged["other_parameters"]) == ("diverged", 0, True)
    assert (diverged["difference"]["object"], diverged["difference"]["step"]) == (differs, 5)
    assert advice in " ".join(diverged["advice"])
    assert "OTHER PARAMETERS" in found["text"]
    assert found["diverged"]


@pytest.mark.parametrize(
    ("defect", "case", "said", "advice"),
    [
        ("collective after the update", "evaluation", "in drilled.py, line", "inside `with step:` and before the update"),
        ("no scope", "kill", "no other one trains", "Write `with step:` around the body of the loop"),
        (
            "barrier before the loop",
            "kill",
            "no step was completed within",
            "A new process is alone between session() and its loop",
        ),
    ],
)
async def test_a_script_that_fails_is_found_and_what_it_said_is_shown(
    defect: str, case: str, said: str, advice: str, drill: Drill
) -> None:
    """The table has the text of the program and the line of the script, unless the program has refused the script at once."""
    limit = {"REKINDLE_REBUILD_TIMEOUT": "5"} if said.endswith("completed within") else {}
    found = await drill(SCRIPT, f"--defect={defect}", code=1, cases=case, **limit)
    if refused(found):
        return
    failed = found["cases"][case]
    assert failed["result"] == "fails"
    assert failed["exit_code"] != 0
    assert said in " ".join(failed["said"])
    assert advice in " ".join(failed["advice"])
    assert "DIVERGED" not in found["text"]


async def test_a_script_that_stops_early_is_compared_with_where_it_stopped(drill: Drill) -> None:
    """A run that trains on where the undisturbed one had stopped has diverged, although all of its earlier steps are the same."""
    found = await drill(SCRIPT, "--defect=early stop", code=1, cases="restart")
    assert found["cases"]["undisturbed"]["note"] == "6 steps, where the script stopped early"
    restarted = found["cases"]["restart"]
    assert (restarted["result"], restarted["other_parameters"]) == ("diverged", True)
    assert "it ended after step 8, undisturbed after step 6" in restarted["note"]
    assert "a count for an early stop" in " ".join(restarted["advice"])


async def test_a_rank_that_alone_has_its_shard_does_not_move_and_the_reason_is_shown(drill: Drill) -> None:
    """The rank is named, and what to write for a switch."""
    script = Path(__file__).with_name("scripts").joinpath("sharded.py")
    found = await drill("--nproc-per-node=4", str(script), code=1, cases="switch", UNIQUE="accepted")
    (said,) = found["cases"]["switch"]["said"]
    assert said.startswith(
        "training could not pause: no rank that is left holds the shard of rank 1; a rank moves to another pod"
    )
    assert "give the device mesh replicas (HSDP)" in said


async def test_a_run_that_hangs_is_ended_and_its_line_is_shown(drill: Drill) -> None:
    """The limit follows from the time of the undisturbed run."""
    found = await drill(SCRIPT, "--defect=stuck in a new process", code=1, cases="kill", REKINDLE_REBUILD_TIMEOUT="5")
    assert found["cases"]["kill"]["result"] == "hangs"
    source = Path(SCRIPT).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "signal.pause()" in text)
    assert f"a rank stands in drilled.py, line {line}" in found["cases"]["kill"]["said"]


async def test_a_script_that_differs_from_run_to_run_is_not_called_diverged(drill: Drill) -> None:
    """A second undisturbed run differs as well, so that there is nothing to compare with."""
    found = await drill(SCRIPT, "--defect=unseeded", code=1, cases="exception")
    assert found["cases"]["exception"]["result"] == "not comparable"
    assert "Seed all that draws random numbers" in found["text"]


async def test_what_differs_before_the_fault_is_not_called_diverged(drill: Drill) -> None:
    """A fault has changed nothing of the steps before it, even if two undisturbed runs are the same."""
    found = await drill(SCRIPT, "--defect=differs before the fault", code=1, cases="exception")
    assert found["cases"]["exception"]["result"] == "not comparable"


async def test_a_place_that_the_script_does_not_come_to_is_not_tried(drill: Drill) -> None:
    """An evaluation that comes later than the last step of the drill is no failure of the script."""
    found = await drill("--drill-steps=4", str(EXAMPLES / "gpt.py"), code=0, cases="evaluation")
    assert results(found) == {"undisturbed": "trains", "evaluation": "not tried"}
    assert "more --drill-steps" in " ".join(found["text"].split())


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ('print("nothing here trains")', (), "no session began on any rank"),
        ('raise ValueError("no data")', (), "ValueError: no data"),
        (Path(SCRIPT).read_text(), ("--no-such-option",), "error: unrecognized arguments: --no-such-option"),
        (Path(SCRIPT).read_text(), ("--steps=3",), "it ends after 3 steps; a drill needs 4"),
    ],
    ids=["no session", "an error", "arguments", "too few steps"],
)
async def test_a_script_that_does_not_train_undisturbed_is_told_why(
    script: str, arguments: tuple[str, ...], words: str, drill: Drill, tmp_path: Path
) -> None:
    """The program's own text is shown, and no fault is tried."""
    (tmp_path / "script.py").write_text(script)
    found = await drill(str(tmp_path / "script.py"), *arguments, code=1)
    assert results(found) == {"undisturbed": "fails"}
    assert words in " ".join([*found["cases"]["undisturbed"]["said"], found["cases"]["undisturbed"]["note"]])


async def test_an_undisturbed_run_that_takes_too_long_is_ended(drill: Drill, tmp_path: Path) -> None:
    """The limit is --drill-seconds."""
    (tmp_path / "script.py").write_text("import signal\nsignal.pause()")
    found = await drill("--drill-seconds=2", str(tmp_path / "script.py"), code=1)
    assert results(found) == {"undisturbed": "hangs"}
    assert "no end within 2 s (--drill-seconds)" in " ".join(found["text"].split())


async def test_a_drill_that_is_interrupted_leaves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """All its processes end, and its folder is removed."""
    (tmp_path / "script.py").write_text(f"import signal\nopen({str(tmp_path / 'begun')!r}, 'w')\nsignal.pause()")
    flags = ["--drill", "--start-method=fork", str(tmp_path / "script.py")]
    process = await zygote.run("train", flags, {"TMPDIR": str(tmp_path)}, tmp_path / "printed.log")
    async with asyncio.timeout(60):
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
    started = everything_of(process)
    assert len(started) > 3
    process.kill(signal.SIGINT)
    assert await process.code() == 128 + signal.SIGINT
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("rekindle-drill-*"))


def everything_of(process: Process) -> list[int]:
    found = [process.pid]
    for pid in found:
        found += children(pid)
    return found


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    """A bar is drawn on standard error, and is gone at the end."""
    (tmp_path / "script.py").write_text("")
    command = [sys.executable, "-m", "rekindle_training.launcher.main", "--drill", str(tmp_path / "script.py")]
    ours, theirs = pty.openpty()
    assert subprocess.run(command, check=False, stderr=theirs, stdout=subprocess.DEVNULL, timeout=SECONDS).returncode == 1
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert "[....................] 0 of 10, undisturbed, 0 s" in shown
    assert shown.endswith("\r\x1b[K")
    assert b"undisturbed," not in subprocess.run(command, check=False, capture_output=True, timeout=SECONDS).stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--drill", "--drill-steps=3"], "--drill-steps 3: accepted is a whole number from 4"),
        (["--drill", "--drill-cases=kill,rain"], "--drill-cases kill,rain: 'rain' is no case; accepted are exception, kill"),
        (["--drill", "--drill-output=yaml"], "--drill-output yaml: accepted are text and json"),
        (["--drill", "--drill-keep=/"], "--drill-keep /: accepted is a folder that is empty, or that does not exist"),
        (["--drill", "--drill-seconds=0"], "--drill-seconds 0: accepted is a whole number from 1"),
        (["--drill", "--nproc-per-node=1"], "--nproc-per-node 1: a drill needs 2 ranks at least"),
        (["--drill", "--nnodes=2"], "--nnodes 2: a drill runs on one machine"),
        (["--drill", "--log-dir=/tmp"], "--log-dir and --drill contradict each other"),
        (["--drill-steps=8"], "--drill-steps without --drill"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_accepted(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and nothing was run."""
    assert main([*flags, SCRIPT]) == 2
    assert words in capsys.readouterr().err


# The comparison.


def trace(*steps: dict[str, str], losses: str = "") -> Trace:
    """A trace of one rank, which has these things after each step."""
    lines = {number: Line((losses,), scoped=True, places={}, things=things) for number, things in enumerate(steps, 1)}
    return Trace({"model": "Net"}, 0, {0: lines})


TRAINS = {"trains weight": "True"}


@pytest.mark.parametrize(
    ("was", "now", "named"),
    [
        ({"model weight": "#1", "data drawn": "4"}, {"model weight": "#2", "data drawn": "5"}, "data drawn is 5, undisturbed 4"),
        ({"model weight": "#1", "state[0] epoch": "1"}, {"model weight": "#2", "state[0] epoch": "2"}, "state[0] epoch is 2"),
        ({"model mean": "#1", "model weight": "#1"}, {"model mean": "#2", "model weight": "#2"}, "model mean differs"),
        (
            {"model weight": "#1", "optimizer state step": "1"},
            {"model weight": "#2", "optimizer state step": "2"},
            "model weight",
        ),
        ({"gradients weight": "#1"}, {}, "gradients weight is missing"),
    ],
)
def test_of_what_differs_the_likely_cause_is_named(was: dict[str, str], now: dict[str, str], named: str) -> None:
    """The object that stands for the cause comes before those that follow from it."""
    same = {"model weight": "#0", **TRAINS}
    difference = compare(trace(same, {**was, **TRAINS}, same), trace(same, {**now, **TRAINS}))
    assert difference is not None
    assert difference.step == 2
    assert str(difference.cause).startswith(named)


@pytest.mark.parametrize(
    ("name", "words"),
    [("own buffers names", "this is likely an error of Rekindle"), ("state[0] epoch", "call it inside `with step:`")],
)
def test_what_the_session_keeps_for_itself_is_no_error_of_the_script(name: str, words: str) -> None:
    """The advice of an object that the session was given is another one."""
    before, after = trace({name: "1"}), trace({name: "2"})
    before.given = after.given = {"model": "Linear", "state[0]": "StepLR"}
    finding = Finding("kill", "kill -9 of a rank", Result.DIVERGED, difference=compare(before, after))
    (advice,) = advise(finding, before)
    assert words in advice


def test_of_a_generator_that_nobody_seeds_the_moves_are_compared() -> None:
    """Such a generator has another state in each run, and is compared by whether it was drawn from."""
    name = "random numbers of python"
    before = trace({name: "#1"}, {name: "#1"}, {name: "#2"})
    assert compare(before, trace({name: "#7"}, {name: "#7"}, {name: "#9"})) is None
    difference = compare(before, trace({name: "#7"}, {name: "#8"}, {name: "#9"}))
    assert difference is not None
    assert str(difference) == "step 2, rank 0: random numbers of python is drawn, undisturbed not drawn"


def test_a_step_that_a_rank_took_from_another_one_is_left_out() -> None:
    """A rank has no line of a step that it did not complete itself."""
    steps = [{"model weight": f"#{step}"} for step in range(4)]
    taken = trace(*steps)
    del taken.ranks[0][2]
    assert compare(trace(*steps), taken) is None


def test_reasons_are_the_programs_own_words() -> None:
    """The injected error is no reason, and a lost connection comes last."""
    text = """
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 7, in <module>
[rank1]:     loss = train()
[rank1]: RuntimeError: injected in step 5
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in average
    dist.all_reduce(loss)
  File "/lib/torch.py", line 1, in all_reduce
RuntimeError: [pair.cc:545] Connection reset by peer
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
TypeError: SGD updates, and was not given to the session
rekindle-manager ERROR training given up reason=no rank is left
"""
    assert output.reasons(text, Path("/home/me")) == [
        "no rank is left",
        "TypeError: SGD updates, and was not given to the session (train.py, line 12)",
        "a rank lost another one in train.py, line 9, in average",
    ]


def test_a_reason_that_manager_and_rank_say_is_shown_once() -> None:
    """The manager's text is that of the rank's error, with which its traceback ends too."""
    text = """
rekindle-manager ERROR training start failed reason=rank 0: broadcast at train.py:7 speaks to other ranks before the loop
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 7, in <module>
[rank0]: rekindle_training.adapter.places.Refused: broadcast at train.py:7 speaks to other ranks before the loop
"""
    assert output.reasons(text, Path("/home/me")) == ["rank 0: broadcast at train.py:7 speaks to other ranks before the loop"]


def test_files_that_the_script_writes_are_found(tmp_path: Path) -> None:
    """Files of the drill, of tools, and of before are left out."""
    for name in ("old.pt", "new.pt", ".git/index", "drill/output.log", "out/ckpt.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.utime(tmp_path / "old.pt", (0, 0))
    assert sorted(written.since(1, tmp_path, tmp_path / "drill")) == ["new.pt", "out/ckpt.pt"]
