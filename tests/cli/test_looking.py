"""Small commands that people use first: lists with ages and steps, repeated output, help, and messages about jobs by their
names."""

import inspect
import json
import os
import signal
import subprocess
import sys
import tomllib
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle import __version__
from rekindle.cli import app, watching
from rekindle.cli.output import age
from rekindle.ids import Updates
from rekindle.model.attachment import Progress
from tests.cli.test_recover import FORCED, ended, typed
from tests.fakes.peer import Script
from tests.support.commands import begun
from tests.support.harness import a_job, training


async def test_the_list_of_jobs_has_their_ages_and_steps(temporal: WorkflowEnvironment) -> None:
    """A step is one that the training side reported; `-o json` is `--output json`."""
    async with training(temporal, a_job()) as (world, _peer):
        attachment = (await world.status()).state.attachment
        assert attachment
        told = Progress(incarnation="life-1", step=17, session=attachment.session)
        await world.tell(Updates.PROGRESS, told)
        code, words = await ended(await typed(world, "jobs", "-o", "json"))
        assert code == 0, words
        (row,) = [row for row in json.loads(words) if row["id"] == world.job.id]
        assert (row["step"], row["pods"]) == (17, "")
        _, words = await ended(await typed(world, "jobs"))
        (line,) = [line for line in words.splitlines() if world.job.id in line]
        assert line.split()[3:5] == ["-", "17"]


async def test_a_busy_job_is_named_as_people_call_it(temporal: WorkflowEnvironment) -> None:
    """An id of 36 letters says nothing to who asked by a name."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        first = await typed(world, "hot-switch", world.job.id, *FORCED)
        await peer.until(lambda: "new pod running" in peer.orders)
        _, words = await ended(await typed(world, "hot-switch", world.job.id, *FORCED))
        assert f"job {world.job.name} is busy with hot switch" in words
        await peer.pause()
        await ended(first)


async def test_a_stress_test_of_a_node_that_the_job_has_not_is_bad_input(temporal: WorkflowEnvironment) -> None:
    """The job has no incident for it, and the message names the node and those that are accepted."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_tests()
        code, words = await ended(await typed(world, "stress-test", world.job.id, "--node", "node-7"))
        assert (code, (await world.status()).state.incidents, peer.orders) == (2, 0, []), words
        assert "node-7" in words
        assert "node-1" in words


async def test_a_look_is_repeated_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--watch` shows again what changed meanwhile."""
    monkeypatch.setattr(watching, "EVERY", 0.0)
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    await watching.repeated(look, watch=False)
    with pytest.raises(KeyboardInterrupt):
        await watching.repeated(look, watch=True)
    assert looks == 3


@pytest.mark.parametrize(
    ("time", "words"), [(-3.0, "0s"), (59, "59s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (200_000, "2d")]
)
def test_an_age_is_a_number_and_a_unit(time: float, words: str) -> None:
    """The smaller unit is used below two of the larger one, since it is more precise. A slow clock makes no negative age."""
    assert age(timedelta(seconds=time)) == words


async def typed_at(home: Path, *arguments: str, shell: str = "/bin/bash") -> tuple[int | None, str, str]:
    """Returns exit code, output and errors of a command of a user with this home."""
    process = await begun(arguments, {"HOME": str(home), "SHELL": shell, "PATH": "/usr/bin:/bin"})
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


async def test_completions_are_installed_without_a_word_in_the_shells_own_files(tmp_path: Path) -> None:
    """The command says what to add, and adds it nowhere by itself."""
    (tmp_path / ".bashrc").write_text("# mine\n")
    code, output, errors = await typed_at(tmp_path, "--install-completion")
    assert code == 0, errors
    assert (tmp_path / ".bashrc").read_text() == "# mine\n"
    assert "source " in output


@pytest.mark.parametrize(
    ("words", "shell", "home", "problem"),
    [
        ((), "/bin/tcsh", "", "--shell: which shell completes is not known, accepted are bash, zsh, fish"),
        (("--shell", "bash"), "/bin/tcsh", "/proc/self", "HOME: completions cannot be written"),
        (("--shell", "zsh"), "/bin/tcsh", "", ""),
    ],
    ids=["another shell", "a home that takes nothing", "a shell that is named"],
)
async def test_completions_for_a_shell_that_is_not_known_are_no_bug_of_ours(
    tmp_path: Path, words: tuple[str, ...], shell: str, home: str, problem: str
) -> None:
    """Containers have no `SHELL`; the shell may be named."""
    code, _, errors = await typed_at(Path(home) if home else tmp_path, "--install-completion", *words, shell=shell)
    assert (code, problem in errors, "Traceback" in errors) == (2 if problem else 0, True, False)


@pytest.mark.parametrize("columns", ["0", "1", "abc"])
def test_a_terminal_without_a_width_is_printed_to(tmp_path: Path, columns: str) -> None:
    """Terminals that do not know theirs say 0."""
    body = "import sys; from rekindle.cli import start; sys.argv = ['rekindle', 'jobs', '--help']; start.main()"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": columns}
    process = subprocess.run(
        [sys.executable, "-c", body], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, "Usage" in process.stdout) == (0, True)


def test_the_command_is_a_module_too() -> None:
    """Scripts of an environment may not be on the path."""
    words = [sys.executable, "-m", "rekindle", "--version"]
    process = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout.strip()) == (0, __version__)


LOADING = """
import os, signal, sys
sys.dont_write_bytecode = True

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "rekindle.client":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["rekindle", "jobs"]
from rekindle.cli.start import main
main()
"""


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word() -> None:
    """A shell reads its end as 130."""
    process = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (-signal.SIGINT, "", "")


def test_the_command_is_the_entry_point_that_bears_ctrl_c() -> None:
    """Returns the entry point, as the wheel has it."""
    entries = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert entries == {"rekindle": "rekindle.cli.start:main"}


@pytest.mark.parametrize(("words", "code"), [(("help",), 0), (("help", "nodes", "mark"), 0), (("help", "nodes", "marc"), 2)])
async def test_help_is_a_command_too(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    """`rekindle help COMMAND` is `rekindle COMMAND --help`."""
    found, output, errors = await typed_at(tmp_path, *words)
    assert found == code
    assert ("Usage" if code == 0 else "'nodes marc' is no command") in output + errors


OVERVIEW = """
import contextlib, sys
from rekindle.cli import app
with contextlib.suppress(SystemExit):
    app.run(["--help"])
print(sorted({"temporalio", "aiohttp", "pydantic", "rekindle.client", "rekindle.cli.demos"} & sys.modules.keys()))
"""


def test_the_list_of_commands_is_printed_without_loading_them() -> None:
    """Commands and groups are in it with their texts, and neither Temporal's client nor the demos are loaded."""
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.run(
        [sys.executable, "-c", OVERVIEW], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    *page, loaded = process.stdout.splitlines()
    listed = {line.strip("│ ").partition("  ")[0]: line for line in page if line.startswith("│")}
    assert loaded == "[]"
    for path, line in app.COMMANDS.items():
        assert line in listed[path.partition(":")[2].replace("_", "-")]
    assert all(line in listed[name] for name, (_, line) in app.GROUPS.items())


@pytest.mark.parametrize("path", app.COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_text(path: str) -> None:
    """`rekindle --help` and the command's own page say the same."""
    module, _, function = path.partition(":")
    assert app.COMMANDS[path] == (inspect.getdoc(getattr(import_module(module), function)) or "").splitlines()[0]


async def test_the_page_of_a_command_has_its_whole_text(tmp_path: Path) -> None:
    """Examples of a command are below the line of the list, wherever `--help` stands."""
    for words in (("jobs", "--help"), ("--help", "jobs"), ("help", "jobs")):
        code, said, _ = await typed_at(tmp_path, *words)
        assert (code, "Example: rekindle jobs -o json" in said) == (0, True)
