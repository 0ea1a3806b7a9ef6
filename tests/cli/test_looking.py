"""Small things that people type first: lists with ages and steps, a second look, help, and words about jobs by their names."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.cli import watching
from rekindle.cli.output import age
from rekindle.ids import Updates
from rekindle.model.recovery import Progress
from tests.cli.test_recover import FORCED, ended, typed
from tests.support.harness import a_job, training
from tests.support.peer import Script


async def test_the_list_of_jobs_has_their_ages_and_steps(temporal: WorkflowEnvironment) -> None:
    """A step is one that training told of; `-o json` is `--output json`."""
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
    """Below two of a unit the smaller one says more; a clock that is behind makes no negative age."""
    assert age(timedelta(seconds=time)) == words


def command(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    body = "import sys; from rekindle.cli import app; sys.argv = ['rekindle', *sys.argv[1:]]; app.main()"
    environment = {"HOME": str(home), "SHELL": "/bin/bash", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", body, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


async def test_completions_are_installed_without_a_word_in_the_shells_own_files(tmp_path: Path) -> None:
    """The command says what to add, and adds it nowhere by itself."""
    (tmp_path / ".bashrc").write_text("# mine\n")
    process = await asyncio.to_thread(command, "--install-completion", home=tmp_path)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / ".bashrc").read_text() == "# mine\n"
    assert "source " in process.stdout


@pytest.mark.parametrize(("words", "code"), [(("help",), 0), (("help", "nodes", "mark"), 0), (("help", "nodes", "marc"), 2)])
def test_help_is_a_command_too(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    """`rekindle help COMMAND` is `rekindle COMMAND --help`."""
    process = command(*words, home=tmp_path)
    assert process.returncode == code
    assert ("Usage" if code == 0 else "'nodes marc' is no command") in process.stdout + process.stderr
