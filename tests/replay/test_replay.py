"""Recorded recoveries still fit the procedures: a change that a running recovery can notice does not pass unseen."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from rekindle.worker_plugin import plugin
from tests.replay.scenes import SCENES
from tests.support.changed import HurriedHotSwitch
from workers.control import MODES
from workflows.training_job import TrainingJob

FOLDER = Path(__file__).parent / "histories"
FILES = sorted(path.name for path in FOLDER.glob("*.json.gz"))
EXPECTED = 65


def _history(name: str) -> WorkflowHistory:
    recorded = json.loads(gzip.decompress((FOLDER / name).read_bytes()))
    return WorkflowHistory.from_json(recorded["id"], recorded["history"])


def test_every_way_to_end_is_recorded() -> None:
    """Each scene has the history of each workflow that it takes, and there is no other."""
    wanted = sorted(
        f"{name}.{number}.{kind}.json.gz" for name, scene in SCENES.items() for number, kind in enumerate(scene.kinds)
    )
    assert wanted == FILES
    assert len(FILES) == EXPECTED


@pytest.mark.parametrize("name", FILES)
async def test_a_recorded_history_replays(name: str) -> None:
    """A recorded history replays with the same steps, under the product's own converter and sandbox."""
    replayer = Replayer(workflows=[TrainingJob, *MODES], plugins=[plugin()])
    async with asyncio.timeout(90):  # a mode that does not fit waits for ever: a mismatch is a failure of its own
        await replayer.replay_workflow(_history(name))


@pytest.mark.parametrize("name", ["recovered.1.HotSwitch.json.gz", "escalate-406.0.HotSwitch.json.gz"])
async def test_a_changed_procedure_does_not_replay(name: str) -> None:
    """The check can fail: without one of its steps a hot switch does not fit its history."""
    replayer = Replayer(workflows=[HurriedHotSwitch], plugins=[plugin()])
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(_history(name))
