"""An upgrade from what each version has stored, with a recovery, a maintenance and a history in flight, on a real server."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle import deployment, ids
from rekindle.client import Rekindle
from rekindle.maintenances import Maintenances
from rekindle.model.attachment import Progress
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.maintenance import Maintenance, Stage
from rekindle.model.mode import Outcome
from rekindle.model.state import JobState, JobStatus, Registration, Remembered
from rekindle.temporal import TASK_TIMEOUT
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.stored.golden import versions
from tests.support.harness import Control, Harness, a_job, harness
from tests.versions.test_upgrades import keeping, version
from workers import versions as worker_versions
from workers.watcher.job_workflows import register
from workflows.ui_text import job_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOLDER = len("aaaaaaaa")
"""Characters of a pod's UID that are kept."""
OFTEN = 0.2
"""Seconds in which the gateway offers its attachment again."""


def example(file: Path, job: Job) -> Any:
    """Returns what a version has stored, as that of this job."""
    text = json.dumps(json.loads(file.read_text())["example"])
    names = {
        '"name": "gpt"': f'"name": "{job.name}"',
        '"job": "gpt"': f'"job": "{job.name}"',
        "default.gpt/": f"default.{job.name}/",
        '"job_id": "job"': f'"job_id": "{job.id}"',
        '"id": "job"': f'"id": "{job.id}"',
        '"job": "job"': f'"job": "{job.id}"',
    }
    for old, new in names.items():
        text = text.replace(old, new)
    return json.loads(text)


@dataclass
class Released:
    """A job as an older version has left it, on the worker `old`; `new` is not started yet."""

    world: Harness
    peer: ScriptedPeer
    old: str
    new: Control
    history: tuple[Incident, ...]
    """History of the job, as it was stored."""
    maintenance: str
    """Workflow id of the one that was stored."""
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """The training side answers the recovery that is in flight."""

    @property
    def last(self) -> int:
        """Number of the last incident that was stored."""
        return self.history[-1].number

    @property
    def failover(self) -> WorkflowHandle[Any, Maintenance]:
        return self.world.client.get_workflow_handle(self.maintenance, result_type=Maintenance)

    async def is_recovered_by_old(self) -> str:
        """The fault that was stored has its order, which is not answered. Returns the workflow id of its recovery."""
        await self.world.look("node-1")
        await self.peer.until(lambda: not {"retry", "recover"}.isdisjoint(self.peer.carried_out))
        recovery = (await self.world.settled(lambda status: status.running is not None)).recovery
        assert await version(self.world.recovery) == self.old
        return recovery

    async def moves_on(self) -> None:
        """Waits until the job has left the old version, which has no worker. A note without a receiver ends after 30 s."""
        async with asyncio.timeout(80):
            while await deployment.count_open(self.world.client, self.old):
                await asyncio.sleep(0.03)
        await self.world.control.stop()

    async def is_protected(self, number: int) -> JobStatus:
        """The next fault is recovered, and the links of the maintenance move back."""
        assert await self.peer.report_fault(1) == 0
        assert (await self.world.incident(number)).verdict is Outcome.RECOVERED
        await Maintenances(Rekindle(self.world.client)).switch_back(self.maintenance)
        assert self.peer.on_backup == set()
        ended = await self.failover.result()
        assert (ended.stage, ended.moves[0].what) == (Stage.OVER, "node-1: 0")
        return await self.world.settled(
            lambda status: not (status.running or any(2 in link.ranks for link in status.state.links))
        )


@asynccontextmanager
async def released(temporal: WorkflowEnvironment, state: Path, maintenance: Path) -> AsyncIterator[Released]:
    """Starts the job and the maintenance of which these are the stored states."""
    stored = example(state, a_job())
    job = Job.model_validate(stored["job"])
    cluster = ScriptedCluster(job)
    stored["holders"] = [cluster.holder(rank).metadata.uid[:HOLDER] for rank in range(job.pods)]  # the pods of then are here
    stored["small"] = None  # so no pod is missing
    old, goes_on = f"{job.id}-old", asyncio.Event()
    script = Script(before_status=lambda _: goes_on.wait())
    async with harness(temporal, job, cluster, build_id=old, offer_again=OFTEN) as world, world.peer(script) as peer:
        await peer.with_links()
        peer.on_backup = {2}
        assert await peer.report_progress(Progress(incarnation="life-1", step=1)) == 0
        await world.entity.terminate("the older version runs from here on")
        failover = stored["links"][0]["maintenance"]
        await _start(world, ids.Workflows.TRAINING_JOB, stored, world.entity.id)
        await _start(world, ids.Workflows.LINK_FAILOVER, {"job": job.id, "known": example(maintenance, job)}, failover)
        new = Control(world.client, world.cluster, build_id=f"{job.id}-new")
        try:
            yield Released(world, peer, old, new, JobState.model_validate_json(json.dumps(stored)).history, failover, goes_on)
        finally:
            await world.forget()
            await new.stop()


async def _start(world: Harness, kind: str, given: object, workflow_id: str) -> None:
    await world.client.start_workflow(kind, given, id=workflow_id, task_queue=ids.CONTROL_QUEUE, task_timeout=TASK_TIMEOUT)


def _words(incident: Incident) -> tuple[object, ...]:
    """Returns what stays of an incident when others have followed."""
    ladder = [(verdict.mode, verdict.outcome, verdict.reason) for verdict in incident.ladder]
    return incident.number, incident.summary, incident.verdict, incident.started_at, incident.seconds, ladder


STATES = [(state, maintenance) for state in versions("job-state") for maintenance in versions("maintenance")]
NOTES = [(state, note) for state in versions("job-state") for note in versions("remembered")]


def _named(files: list[tuple[Path, Path]]) -> list[str]:
    return [", ".join(file.stem for file in pair) for pair in files]


@pytest.mark.parametrize(("state", "maintenance"), STATES, ids=_named(STATES))
@pytest.mark.parametrize("is_gone", [False, True], ids=["drains", "is gone"])
async def test_an_upgrade_in_the_middle_of_everything_leaves_nothing_unprotected(
    state: Path, maintenance: Path, is_gone: bool, temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery that runs ends, the next fault is recovered, the links move back, and what was before is shown."""
    monkeypatch.setattr(worker_versions, "EVERY", 0.1)
    async with released(temporal, state, maintenance) as this:
        await this.is_recovered_by_old()
        if is_gone:
            await this.world.control.stop()
        await this.new.start()
        async with keeping(this.new, alone=is_gone):
            this.goes_on.set()
            assert (await this.world.incident(this.last + 1)).verdict is Outcome.RECOVERED
            await this.moves_on()
            status = await this.is_protected(this.last + 2)
        assert [_words(one) for one in status.state.history[: len(this.history)]] == [_words(one) for one in this.history]
        assert "incident 3: sub-health node-1 -> hot switch recovered" in job_page(status.state, None, "")


@pytest.mark.parametrize(("state", "note"), NOTES, ids=_named(NOTES))
async def test_an_upgrade_finds_the_recovery_of_a_job_whose_workflow_was_lost(
    state: Path, note: Path, temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note on the job's object names it. It goes to its end, its incident counts, and the job is protected."""
    monkeypatch.setattr(worker_versions, "EVERY", 0.1)
    async with released(temporal, state, versions("maintenance")[-1]) as this:
        recovery = await this.is_recovered_by_old()
        await this.world.entity.terminate("by mistake")
        await this.world.control.stop()
        await this.new.start()
        async with keeping(this.new, alone=True):
            remembered = Remembered.model_validate({**example(note, this.world.job), "recovery": recovery})
            await register(this.world.client, Registration(job=this.world.job, remembered=remembered), uuid.uuid4().hex)
            await this.world.look("node-1")
            this.goes_on.set()
            await this.world.settled(lambda status: not status.state.lost_recovery and status.state.attachment is not None)
            found = await this.world.event("RecoveryFound")
            assert f"{recovery} ran when the job's workflow was lost; it is settled" in found.message
            await this.moves_on()
            await this.is_protected(this.last + 2)
