"""Account of real jobs: what is reported of a job equals what its ranks wrote into their step logs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rekindle.cli.demos import measure
from rekindle.cli.demos.process_faults import ProcessFaults, Strike
from rekindle.cli.demos.scenario import RANKS
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import Picture, StepRecord
from tests.end_to_end.conftest import STEPS, Product, StruckAgain
from tests.support.commands import begun
from tests.support.step_logs import SAVES, TOLERANCE, Logged, counted, logged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


def compare(result: dict[str, Any], job: Path) -> Logged:
    """Compares the account of a job with its step logs, and returns what these say."""
    said, seen = result["seconds"], logged(job)
    saved = sum(phase["seconds"] for phase in result["phases"] if phase["name"] == SAVES)
    account = counted(said, saved)
    for name in ("trained", "again", "stood"):
        assert getattr(account, name) == pytest.approx(getattr(seen, name), abs=TOLERANCE * seen.stretches), (name, said)
    assert said["unknown"] == 0, said
    assert said["not yet recovered"] == 0, said
    return seen


async def reported(product: Product, *arguments: str) -> str:
    """Returns what `rekindle report` prints."""
    return await typed(product, "report", *arguments)


async def typed(product: Product, *arguments: str) -> str:
    """Returns what a command prints."""
    environment = {**os.environ, **product.stack.addresses.environment(), "COLUMNS": "200"}
    command = await begun(arguments, environment, product.directory)
    output, errors = await command.communicate()
    assert command.returncode == 0, errors.decode()
    return output.decode()


async def test_a_hot_switch_is_counted_as_the_ranks_saw_it(product: Product) -> None:
    """Training stands once, for as long as the step logs say; `rekindle report` prints the same numbers in every form."""
    scenario = HotSwitchScenario(SubHealth(steps=STEPS), product.stack, product.directory, lambda _: None)
    result = await scenario.run()
    seen = compare(result, scenario.job_directory)
    assert seen.stretches == 2
    (whole,) = json.loads(await reported(product, scenario.job_id, "--output", "json"))
    shares = {share["bucket"]: share["seconds"] for share in whole["buckets"]}
    assert shares == pytest.approx(result["seconds"], abs=0.0001)
    assert sum(shares.values()) == pytest.approx(whole["seconds"])
    assert whole["ranks"] == RANKS
    assert whole["incidents"]["count"] == 1
    page = await reported(product, scenario.job_id, "--output", "html")
    text = await reported(product, scenario.job_id)
    for share in whole["buckets"]:
        words = f"{share['seconds']:.3f} s"
        assert words in page
        assert words in text
    await see_the_picture(product, scenario.job_id, measure.read_steps(scenario.job_directory), whole)


async def see_the_picture(product: Product, job_id: str, records: Sequence[StepRecord], whole: dict[str, Any]) -> None:
    """Compares the picture of the hot switch with its step logs, and its price with that of the report."""
    picture = Picture.model_validate(json.loads(await typed(product, "incident", job_id, "--output", "json")))
    assert (picture.number, picture.outcome, picture.missing) == (1, Outcome.RECOVERED, ())
    lanes = {lane.name: [item.text for item in lane.items] for lane in picture.lanes}
    assert lanes["order"] == ["order hot switch", "order new pod running", "order migration"]
    assert lanes["phase"][0] == "training side prepares"
    assert any(text.startswith("start backup pod") for text in lanes["cluster"])
    assert any(text.startswith("reports status migration") for text in lanes["manager"])
    (moved,) = lanes["ranks 2-3"]
    assert moved.startswith("moved: ")
    assert " on node-1 -> " in moved
    (stood,) = (item for lane in picture.lanes if lane.name == "ranks 0-1" for item in lane.items)
    own = sorted((one for one in records if one.rank == 0), key=lambda one: one.end)
    last = [one for one in own if one.generation == own[0].generation][-1]
    assert stood.since <= last.end < stood.until
    (cause,) = whole["incidents"]["by_cause"]
    assert picture.pause
    assert picture.pause.ranks == RANKS
    assert picture.pause.seconds == pytest.approx(cause["seconds"], abs=0.0001)
    text = await typed(product, "incident", job_id, "1")
    assert f"training stood {picture.pause.seconds * 1000:.0f} ms" in text


async def test_a_rank_that_is_killed_is_counted_as_the_ranks_saw_it(product: Product) -> None:
    """Other ranks know the times that the killed process had not reported yet."""
    options = ProcessFaults(mode=Mode.IN_PLACE, fault=Strike.KILL, steps=STEPS)
    scenario = StruckAgain(options, product.stack, product.directory, None)
    compare(await scenario.run(), scenario.job_directory)


async def test_a_restart_is_counted_as_the_ranks_saw_it(product: Product) -> None:
    """The new processes read in the step logs when their predecessors stopped, and how many steps they do again."""
    scenario = HotSwitchScenario(SubHealth(steps=STEPS, backup_fails=True), product.stack, product.directory, lambda _: None)
    result = await scenario.run()
    compare(result, scenario.job_directory)
    assert result["seconds"]["waiting for pods"] > 0
