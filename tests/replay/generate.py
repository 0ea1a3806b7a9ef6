"""Records the histories that `test_replay.py` replays: `python -m tests.replay.generate`, when a procedure was changed.

Each scene is played by the real control plane, a scripted cluster and a scripted training side; the histories of all workflows
that it took are written beside this file.
"""

import asyncio
import gzip
import json
import re
from pathlib import Path

from temporalio.client import WorkflowExecution, WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.replay.scenes import SCENES, Scene
from tests.support.harness import Harness, harness
from tests.support.temporal import skipping_server

FOLDER = Path(__file__).parent / "histories"
ROOT = Path(__file__).parents[2]


async def record(env: WorkflowEnvironment, scene: Scene) -> list[WorkflowHistory]:
    """Plays a scene; the histories of the workflows that it names."""
    job = scene.build()
    cluster = ScriptedCluster(job)
    scene.prepare(cluster)
    async with harness(env, job, cluster) as world, world.peer(scene.script) as peer:
        await world.first_step()
        await scene.play(world, peer)
        if ids.Workflows.TRAINING_JOB in scene.kinds:
            await world.tell(ids.Updates.END, "the scene is over")
        runs = await _runs(world, scene)
        return [await world.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history() for run in runs]


async def _runs(world: Harness, scene: Scene) -> list[WorkflowExecution]:
    """The closed runs, as soon as the server lists all that the scene names."""
    recoveries = f"recovery/{world.job.namespace}.{world.job.name}/"
    query = f"WorkflowId STARTS_WITH '{recoveries}' OR WorkflowId STARTS_WITH 'request/{world.job.id}/'"
    if ids.Workflows.TRAINING_JOB in scene.kinds:
        query = f"{query} OR WorkflowId = '{world.entity.id}'"
    kinds: list[str] = []
    for _ in range(200):
        listed = [run async for run in world.client.list_workflows(f"({query}) AND ExecutionStatus != 'Running'")]
        runs = sorted(listed, key=lambda run: run.start_time)
        kinds = [run.workflow_type for run in runs]
        if kinds == list(scene.kinds):
            return runs
        await asyncio.sleep(0.05)
    raise AssertionError(f"the scene took {kinds}, expected {list(scene.kinds)}")


def written(history: WorkflowHistory) -> bytes:
    """A history without where and by whom it was recorded."""
    content = json.dumps({"id": history.workflow_id, "history": history.to_json_dict()})
    content = content.replace(f"{ROOT}/", "")
    content = re.sub(r'"[0-9]+@[^"]+"', '"recorder"', content)
    content = re.sub(r'(File \\")[^"\\]*/(site-packages|lib/python[0-9.]+)/', r"\1", content)
    return gzip.compress(content.encode(), mtime=0)


async def main() -> None:
    env = await skipping_server()
    recorded: dict[str, bytes] = {}
    try:
        for name, scene in SCENES.items():
            for number, history in enumerate(await record(env, scene)):
                recorded[f"{name}.{number}.{scene.kinds[number]}.json.gz"] = written(history)
            print(name)
    finally:
        await env.shutdown()
    for old in FOLDER.glob("*.json.gz"):
        old.unlink()
    for file, content in recorded.items():
        (FOLDER / file).write_bytes(content)


if __name__ == "__main__":
    asyncio.run(main())
