"""The command line shows the upgrade of a switch: typed beside a real control plane and scripted peers."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import yaml
from temporalio.testing import WorkflowEnvironment

from rekindle.cli import app
from rekindle.cli.terminal import console, problems
from rekindle.model.plan import Stage, Word
from tests.cli.test_recover import ended, typed
from tests.workflows.support.fleet import FIRST, Two, two_jobs


def written(this: Two, folder: Path) -> str:
    """Writes a plan of two leaves, each with one job."""
    leaves = [{"name": "a", "first": {"node-1": [0, 1]}}, {"name": "b", "first": {"node-4": [0, 1]}}]
    document = {
        "apiVersion": "rekindle.io/v1",
        "kind": "SwitchUpgrade",
        "metadata": {"name": this.switch},
        "spec": {"carries": {"first": {"node-1": [0, 1], "node-4": [0, 1]}}, "leaves": leaves},
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def test_a_switch_is_upgraded_from_the_command_line(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """A switch is upgraded from the command line: the dry run shows the plan, each job is named as it is moved, and a person
    decides how to continue."""
    async with two_jobs(temporal) as this:
        file, name = written(this, tmp_path), this.switch
        one, two = this.first.job.name, this.second.job.name
        code, said = await ended(await typed(this.first, "plan", "start", file, "--dry-run"))
        assert code == 0, said
        assert f"  {one}: to the backup link: node-1 0,1 (ranks 2, 3)" in said
        assert "would be accepted: 2 leaves" in said
        assert (this.one.received, this.two.received) == ([], [])
        code, said = await ended(await typed(this.first, "plan", "start", file, "--wait"))
        assert code == 0, said
        assert f"leaf a: {one}: on the backup link" in said
        assert f"{name}: leaf a (1 of 2): no job uses it, upgrade it now; waits for proceed" in said
        code, said = await ended(await typed(this.first, "plan", "proceed", name))
        assert (code, f"{name}: leaf a (1 of 2): switching back" in said) == (0, True), said
        code, said = await ended(await typed(this.first, "plan", "run", name))
        assert (code, "leaf b (2 of 2): no job uses it" in said, this.two.on_backup) == (0, True, {2, 3}), said
        code, said = await ended(await typed(this.first, "plan", "rollback", name))
        assert code == 0, said
        assert (await this.handle.result()).stage is Stage.ROLLED_BACK
        code, said = await ended(await typed(this.first, "plan", "show", name, "--output", "json"))
        shown = json.loads(said)
        assert (code, shown["now"], [leaf["name"] for leaf in shown["done"]], two in said) == (0, "rolled back", ["a"], True)


async def test_a_check_decides_in_place_of_a_person(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """A check decides in place of a person. It runs locally and receives the leaf; where it fails the leaf stays free, and the
    exit code is 1."""
    async with two_jobs(temporal) as this:
        check = f'echo "$REKINDLE_LEAF" >> {tmp_path}/asked; test "$REKINDLE_LEAF" != b -o -e {tmp_path}/up'
        file = written(this, tmp_path)
        code, said = await ended(await typed(this.first, "plan", "start", file, "--check", check))
        assert (code, "failed: proceed or roll back by hand" in said) == (1, True), said
        assert ((tmp_path / "asked").read_text().split(), this.two.on_backup) == (["a", "b"], {2, 3})
        machine = ("plan", "run", this.switch, "--check", "false", "--output", "json")
        output, _ = await (following := await typed(this.first, *machine)).communicate()
        assert (following.returncode, json.loads(output)["stage"]) == (1, Stage.FREE), output
        (tmp_path / "up").touch()
        code, said = await ended(await typed(this.first, "plan", "run", this.switch, "--check", check))
        assert (code, f"{this.switch}: done" in said) == (0, True), said
        assert (this.one.on_backup, this.two.on_backup) == (set(), set())


async def test_a_check_releases_the_leaf_that_it_was_run_for_and_no_other(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """A person was faster: the next leaf, which is free by then, is not released."""
    async with two_jobs(temporal) as this:
        os.mkfifo(tmp_path / "upgraded")
        file = written(this, tmp_path)
        following = await typed(this.first, "plan", "start", file, "--check", f"cat {tmp_path}/upgraded")
        said_so = await asyncio.to_thread((tmp_path / "upgraded").open, "w")  # when a process reads it
        await this.plans.tell(this.switch, Word.PROCEED)
        async with asyncio.timeout(60):
            while (await this.plans.status(this.switch)).stage is not Stage.FREE or not this.two.on_backup:
                await asyncio.sleep(0.03)
        said_so.close()
        code, said = await ended(following)
        assert (code, "leaf a is not free, leaf b is" in said, this.two.on_backup) == (4, True, {2, 3}), said


async def test_an_upgrade_that_is_no_more_is_followed_to_its_end(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """An upgrade that was refused shows the reason, and one that was terminated shows that; the command waits for neither."""
    async with two_jobs(temporal, second_trains=False) as this:
        file = written(this, tmp_path)
        code, said = await ended(await typed(this.first, "plan", "start", file))
        assert (code, "no training step was completed" in said) == (4, True), said
        code, said = await ended(await typed(this.first, "plan", "run", this.switch))
        assert (code, f"{this.switch}: refused" in said, "no training step was completed" in said) == (1, True, True), said
        await this.plans.start(this.plan([FIRST]))
        await ended(await typed(this.first, "plan", "run", this.switch))
        await this.handle.terminate("by mistake")
        code, said = await ended(await typed(this.first, "plan", "run", this.switch))
        assert (code, f"{this.switch}: terminated" in said) == (1, True), said
        assert f"  {this.first.job.name}: on the backup link" in said
        async with asyncio.timeout(60):
            while "terminated" not in (said := (await ended(await typed(this.first, "plan", "show")))[1]):
                await asyncio.sleep(0.1)
        (link,) = (await this.first.status()).state.links
        await this.maintenances.switch_back(link.maintenance)


GOOD = (
    "{apiVersion: rekindle.io/v1, kind: SwitchUpgrade, metadata: {name: t}, spec: {carries: {first: {n: [0, 1]}}, leaves: [%s]}}"
)


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ("{name: a, first: {n: [0]}}", "the first link of device 1 of n is on no leaf: the leaves do not cover the switch"),
        ("{name: a, firsts: {n: [0, 1]}}", "spec.leaves.0.firsts: unknown field, did you mean first?"),
    ],
)
def test_a_plan_is_checked_before_any_service_is_asked(
    leaves: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan is checked before any service is asked. An error names its field, or what it contradicts."""
    for one in (console, problems):
        monkeypatch.setattr(one, "width", 200)
    path = tmp_path / "plan.yaml"
    path.write_text(GOOD % leaves)
    assert app.run(["plan", "check", str(path)]) == 2
    assert words in "".join(capsys.readouterr())
