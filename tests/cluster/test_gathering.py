"""Reports about many pods are combined, and each event costs little."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Literal

import pytest

from activities.clusters.port import Snapshot
from rekindle.model.cluster import Node, Pod, PodPhase, WatchEvent
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.detection.watcher_updates import Acknowledged, Register, due, shown
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.job_views import job, node, pod
from tests.support.operations import operations
from tests.support.watching import Peer, now, watching
from workers.watcher.cluster_index import ClusterIndex

MANY = 9
MANY_PODS = 1250


class LargeCluster(ScriptedCluster):
    """One job of many pods, each on a node of its own; the test sets what changes."""

    def __init__(self) -> None:
        super().__init__(job_of(job(pods=1), Limits()))
        self.pods_of_job = [pod(rank, f"{rank:08x}", node=f"node-{rank}") for rank in range(MANY_PODS)]
        self.all_nodes = [node(f"node-{rank}") for rank in range(MANY_PODS)]
        self.changes: asyncio.Queue[WatchEvent] = asyncio.Queue()

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        yield Snapshot([job(pods=MANY_PODS)], self.pods_of_job, self.all_nodes)
        while True:
            yield await self.changes.get()
            await asyncio.sleep(0)  # as between two lines of a stream

    def change(self, thing: Pod | Node) -> None:
        """Replaces a pod or node by this version."""
        kind: Literal["Pod", "Node"] = "Pod" if isinstance(thing, Pod) else "Node"
        self.changes.put_nowait(WatchEvent(type="MODIFIED", kind=kind, object=thing))


async def test_pods_that_fail_at_once_are_a_handful_of_updates() -> None:
    """Failures of 1,250 pods, one event after the other, become one fault. Updates are at least 0.05 s apart while the events
    last."""
    peer, cluster = Peer(), LargeCluster()
    async with watching(cluster, peer):
        await peer.until_last(Register)
        for rank in range(MANY_PODS):
            cluster.change(pod(rank, f"{rank:08x}", node=f"node-{rank}", phase=PodPhase.FAILED))
        await peer.until_seen(lambda seen: not any(seen.holders))
    (fault,) = peer.sighting.faults
    assert len(fault.pod_ranks) == MANY_PODS
    assert min(peer.gaps()) >= 0.045


async def test_a_job_that_grows_is_told_once_a_second() -> None:
    """A start of 1,250 pods, one by one, causes about one update per second."""
    peer, cluster = Peer(), LargeCluster()
    pods, cluster.pods_of_job = cluster.pods_of_job, []
    async with watching(cluster, peer):
        await peer.until_last(Register)
        for one in pods:
            cluster.change(one)
        await peer.until_seen(lambda seen: all(seen.holders))
    assert min(peer.gaps()) >= 0.95


async def test_a_job_that_is_hurt_while_it_grows_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that fails is reported without waiting for others that start; here they would wait longer than any test."""
    monkeypatch.setattr("workers.watcher.reconciler.GROWING", 1000.0)
    peer, cluster = Peer(), LargeCluster()
    pods, cluster.pods_of_job = cluster.pods_of_job, []
    async with watching(cluster, peer):
        await peer.until_last(Register)
        for one in pods[1:]:
            cluster.change(one)
        cluster.change(pod(0, "first", phase=PodPhase.FAILED))
        await peer.until_seen(lambda seen: bool(seen.faults))
    assert len(peer.taken) == 2


async def test_a_job_that_is_never_quiet_is_told_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that flaps all day must not fill the history: after many updates the next one comes later."""
    monkeypatch.setattr("workers.watcher.reconciler.MANY", MANY)
    monkeypatch.setattr("workers.watcher.reconciler.CROWDED", 1.0)
    peer, cluster = Peer(), LargeCluster()
    async with watching(cluster, peer):
        await peer.until_last(Register)
        for number in range(1, MANY):
            cluster.change(node("node-7", sick=f"slow-{number}"))
            await peer.until_seen(shows(number))
        began = now()
        cluster.change(node("node-7", sick=f"slow-{MANY}"))
        await peer.until_seen(shows(MANY))
        assert now() - began >= 0.95


@pytest.mark.parametrize(("bound", "most"), [("MOST", 2), ("PLENTY", 1)])
async def test_a_job_that_was_told_much_within_an_hour_is_told_rarely(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """A job that received many updates within an hour, by number or by size, receives further ones rarely. A workflow has room
    for 2,000 updates and 50 MB, and begins no new run during a recovery."""
    monkeypatch.setattr(f"workers.watcher.reconciler.{bound}", most)
    monkeypatch.setattr("workers.watcher.reconciler.RARELY", 1.0)
    peer, cluster = Peer(), LargeCluster()
    async with watching(cluster, peer):
        await peer.until_last(Register)
        for number in range(1, 4):
            cluster.change(node("node-7", sick=f"slow-{number}"))
            await peer.until_seen(shows(number))
    assert min(peer.gaps()[1:]) >= 0.95


def shows(number: int) -> Callable[[Sighting], bool]:
    """Returns whether an observation has this one of many sub-healths of a node."""
    return lambda seen: [fault.code for fault in seen.faults] == [f"slow-{number}"]


def test_twice_as_many_pods_make_an_event_twice_the_work() -> None:
    """An event of a job with twice as many pods costs at most about twice the work. Of its pods and nodes, only those that matter
    are visited more than once."""
    half, whole = (operations(_one_event_of(pods)) for pods in (MANY_PODS // 2, MANY_PODS))
    assert whole < 2.5 * half


def _one_event_of(pods: int) -> Callable[[], None]:
    """Returns a function in which one pod of a job changes, while one of its nodes is sub-healthy."""
    cluster = LargeCluster()
    nodes = [node("node-0", sick="slow"), *cluster.all_nodes[1:pods]]
    index = ClusterIndex([job(pods=pods)], cluster.pods_of_job[:pods], nodes)

    def event() -> None:
        (job_id,) = index.put(cluster.pods_of_job[3])
        news = due(shown(index.view(job_id), Limits()), Acknowledged())
        assert isinstance(news, Register)
        assert news.registration.sighting
        assert len(news.registration.sighting.faults) == 1

    return event


def test_a_node_without_news_concerns_nobody() -> None:
    """Thousands of nodes report every few minutes. Only jobs with pods on a changed node are processed."""
    index = ClusterIndex([job()], [pod(0)], [node(), node("node-1")])
    assert index.put(node()) == set()
    assert index.put(node(sick="slow")) == {"job"}
    assert index.put(node("node-1", sick="slow")) == set()
    index.remove(pod(0))
    assert index.put(node()) == set()
