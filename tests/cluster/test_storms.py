"""The watcher finds storms, and tells only the jobs that are not well."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from activities.clusters.port import Snapshot
from rekindle.errors import Unavailable
from rekindle.model.cluster import JobObject, Node, Pod, WatchEvent
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.policy.detection.storm import Marks
from rekindle.policy.detection.watcher_updates import Acknowledged, Register, Shown, Sighted, due, is_urgent
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job, node_fault
from tests.support.job_views import job, node, pod
from tests.support.watching import Peer
from workers.watcher.watcher import Watcher

MARKS = Marks(nodes=20, recoveries=2)
OFTEN = 0.01


@dataclass
class Recoveries:
    """Recoveries that run, as a Temporal server would list them."""

    ids: set[str] = field(default_factory=set)
    away: bool = False
    looks: int = 0

    async def __call__(self) -> set[str]:
        self.looks += 1
        if self.away:
            raise Unavailable("Temporal: no answer")
        return self.ids

    async def looked_at(self) -> None:
        """Waits until the present recoveries were listed, and the result was used."""
        looks = self.looks
        while self.looks < looks + 2:
            await asyncio.sleep(0)

    def run(self, *job_ids: str) -> None:
        self.ids = {f"recovery/default.gpt/1-in-place-recovery/{job_id[:8]}" for job_id in job_ids}


class Streamed(ScriptedCluster):
    """A cluster of ten nodes, of which a test streams the changes."""

    def __init__(self, jobs: int = 3, nodes: int = 10) -> None:
        super().__init__(a_job())
        self.changes: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.jobs = [a_job_named(f"job-{number}") for number in range(jobs)]
        self.running = [a_pod_of(f"job-{number}", f"node-{number}") for number in range(jobs)]
        self.all_nodes = {f"node-{number}": node(f"node-{number}") for number in range(nodes)}

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        yield Snapshot(tuple(self.jobs), tuple(self.running), tuple(self.all_nodes.values()))
        while True:
            yield await self.changes.get()

    def lose(self, *numbers: int) -> None:
        self._set(*(node(f"node-{number}", ready="Unknown") for number in numbers))

    def bring_back(self, *numbers: int) -> None:
        self._set(*(node(f"node-{number}") for number in numbers))

    def _set(self, *nodes: Node) -> None:
        for one in nodes:
            self.all_nodes[one.metadata.name] = one
            self.changes.put_nowait(WatchEvent(type="MODIFIED", kind="Node", object=one))


def a_job_named(job_id: str) -> JobObject:
    one = job(pods=1)
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"uid": job_id, "name": job_id})})


def a_pod_of(job_id: str, on: str) -> Pod:
    one = pod(0, f"of-{job_id}", node=on)
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"owner_uid": job_id})})


@asynccontextmanager
async def watching(cluster: Streamed, peer: Peer, recoveries: Recoveries | None = None) -> AsyncIterator[None]:
    watcher = Watcher(cluster, peer, Limits(), look_for_lost=60, listed=0.05)
    watcher.hold_in_storms(MARKS, recoveries or Recoveries(), OFTEN)
    task = asyncio.create_task(watcher.run())
    try:
        await peer.until(lambda: registered(peer) == len(cluster.jobs))
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def everything_told() -> None:
    """Waits until nothing more is to be sent."""
    async with asyncio.timeout(60):
        while any(getattr(task.get_coro(), "__name__", "") == "_reconcile" for task in asyncio.all_tasks()):
            await asyncio.sleep(0)


def registered(peer: Peer) -> int:
    return sum(isinstance(news, Register) for news in peer.news)


def last(peer: Peer, job_id: str) -> Sighting:
    """Returns what the workflow of a job was told last."""
    news = [news for told, news in peer.taken if told == job_id][-1]
    seen = news.registration.sighting if isinstance(news, Register) else news.sighting if isinstance(news, Sighted) else None
    assert seen
    return seen


async def test_jobs_with_faults_are_told_of_a_storm_and_of_its_end() -> None:
    """A job on a lost node is told at once, with the numbers. A healthy job gets no update: there may be thousands."""
    cluster, peer = Streamed(), Peer()
    async with watching(cluster, peer):
        cluster.lose(0, 8)
        await peer.until(lambda: bool(last(peer, "job-0").faults))
        assert not last(peer, "job-0").storm
        cluster.lose(9)
        await peer.until(lambda: bool(last(peer, "job-0").storm))
        assert last(peer, "job-0").storm == "3 of 10 nodes are unhealthy, the mark is 20%"
        cluster.lose(1)
        await peer.until(lambda: bool(last(peer, "job-1").storm))
        assert last(peer, "job-1").faults
        await everything_told()
        cluster.bring_back(8, 9)
        await peer.until(lambda: not last(peer, "job-0").storm and not last(peer, "job-1").storm)
        assert last(peer, "job-0").faults
        cluster.bring_back(0)
        await peer.until(lambda: not last(peer, "job-0").faults)
    assert [type(news) for job_id, news in peer.taken if job_id == "job-2"] == [Register]
    assert len([news for job_id, news in peer.taken if job_id == "job-0"]) == 5


async def test_a_job_that_is_well_again_leaves_the_storm() -> None:
    """A sighting without faults has no storm, so that no later mode of the job is held."""
    cluster, peer = Streamed(), Peer()
    async with watching(cluster, peer):
        cluster.lose(0, 7, 8, 9)
        await peer.until(lambda: bool(last(peer, "job-0").storm))
        cluster.bring_back(0)
        await peer.until(lambda: not last(peer, "job-0").faults)
        assert not last(peer, "job-0").storm


async def test_a_watcher_that_starts_in_a_storm_registers_jobs_with_it() -> None:
    """The storm is found in the first list, before any job is told of its fault."""
    cluster, peer = Streamed(), Peer()
    cluster.lose(0, 8, 9)
    cluster.changes = asyncio.Queue()
    async with watching(cluster, peer):
        assert last(peer, "job-0").storm
        assert not last(peer, "job-1").storm


async def test_many_recoveries_are_a_storm_for_the_jobs_that_they_recover(caplog: pytest.LogCaptureFixture) -> None:
    """The training side has reported their faults, which the cluster does not show. Other jobs get no update."""
    cluster, peer, recoveries = Streamed(jobs=4), Peer(), Recoveries()
    async with watching(cluster, peer, recoveries):
        recoveries.run("job-0", "job-1", "job-2")
        await peer.until(lambda: all(last(peer, f"job-{number}").storm for number in range(3)))
        recoveries.run("job-0", "job-1")
        await recoveries.looked_at()
        await everything_told()
        assert last(peer, "job-2").storm == "3 recoveries run at once, the mark is 2"
        recoveries.run("job-0")
        await peer.until(lambda: not any(last(peer, f"job-{number}").storm for number in range(3)))
    assert [type(news) for job_id, news in peer.taken if job_id == "job-3"] == [Register]
    said = [one.getMessage() for one in caplog.records if one.name == "watcher"]
    assert (said.count("storm begun"), said.count("storm ended")) == (1, 1)


async def test_a_temporal_that_is_away_ends_no_storm() -> None:
    """The last list of recoveries holds until there is a newer one."""
    cluster, peer, recoveries = Streamed(), Peer(), Recoveries()
    async with watching(cluster, peer, recoveries):
        recoveries.run("job-0", "job-1", "job-2")
        await peer.until(lambda: bool(last(peer, "job-0").storm))
        recoveries.run()
        recoveries.away = True
        cluster.lose(0)
        await peer.until(lambda: bool(last(peer, "job-0").faults))
        assert last(peer, "job-0").storm
        recoveries.away = False
        await peer.until(lambda: not last(peer, "job-0").storm)


def test_new_numbers_of_a_storm_are_no_news() -> None:
    """Numbers alone are no news: each node that changes would lead to an update of each job with faults."""
    fault = Sighting(holders=("a",), faults=(node_fault("node-1"),))
    known = Acknowledged(sighting=fault.model_copy(update={"storm": "29 of 100 nodes are unhealthy"}), reached=True)
    told = Shown(sighting=fault.model_copy(update={"storm": "31 of 100 nodes are unhealthy"}))
    assert due(told, known) is None
    over = due(Shown(sighting=fault), known)
    assert over == Sighted(sighting=fault)
    assert is_urgent(over, known)
