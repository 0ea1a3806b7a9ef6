"""The watcher over a real cluster, with a scripted peer in place of Temporal."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.clusters.local import LocalCluster
from activities.clusters.port import Snapshot
from rekindle.cluster_client import ClusterClient
from rekindle.errors import BadInput, ClusterUnavailable, Refused, Unavailable
from rekindle.model.cluster import ClusterEvent, Pod, WatchEvent
from rekindle.model.fault import FaultKind, Sighting
from rekindle.model.keys import RANK_INDEX, SUB_HEALTHY_STRATEGY
from rekindle.policy.detection.watcher_updates import End, News, Register, Sighted
from tests.support.cluster import job_object, until, until_gone, until_running
from tests.support.watching import Peer, watching
from workers.watcher import watcher
from workers.watcher.job_workflows import JobUnknown


@pytest.fixture
async def cluster(client: ClusterClient) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(client.socket)
    yield cluster
    await cluster.close()


def kinds(seen: Sighting) -> list[FaultKind]:
    return [fault.kind for fault in seen.faults]


async def test_the_life_of_a_job_is_told(client: ClusterClient, cluster: LocalCluster) -> None:
    """A job is registered when submitted, unhealthy and healed with its node, and ended when deleted."""
    peer = Peer()
    async with watching(cluster, peer):
        job = await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        before = datetime.now(UTC)
        await client.degrade(pod.spec.node_name, "slow", "half speed")
        (fault,) = (await peer.until_seen(lambda seen: bool(seen.faults))).faults
        assert fault.seen_at
        assert before < fault.seen_at < datetime.now(UTC)
        await client.heal(pod.spec.node_name)
        await peer.until_seen(lambda seen: not seen.faults)
        await client.delete_job("demo", 0)
        end = await peer.until_last(End)
    assert isinstance(peer.news[0], Register)
    assert {type(news) for news in peer.news[1:-1]} == {Sighted}
    assert (fault.kind, fault.node, fault.code, fault.pod_ranks) == (FaultKind.SUB_HEALTH, pod.spec.node_name, "slow", (0,))
    assert end == End(reason="the job was deleted")
    assert {job_id for job_id, _ in peer.taken} == {job.metadata.uid}


async def test_a_lost_node_and_its_pod_are_told(client: ClusterClient, cluster: LocalCluster) -> None:
    """A lost node is one fault, and the pod on it another; the pod's rank has no holder."""
    peer = Peer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        await client.take_down(pod.spec.node_name)
        seen = await peer.until_seen(lambda seen: len(seen.faults) == 2)
    assert kinds(seen) == [FaultKind.NODE, FaultKind.POD]
    assert seen.faults[1].pod_uids == (pod.metadata.uid,)
    assert seen.holders == ("",)


@pytest.mark.parametrize("grace", [0, 60])
async def test_a_pod_that_somebody_deletes_lost_its_rank(client: ClusterClient, cluster: LocalCluster, grace: int) -> None:
    """A drain, an eviction, a preemption and a person all delete it: its rank has no holder, from the beginning of its end on."""
    peer = Peer()
    async with watching(cluster, peer):
        job = await client.submit(job_object(command=("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")))
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        await client.delete_pod(pod.metadata.name, pod.metadata.uid, grace)
        seen = await peer.until_seen(lambda seen: seen.holders == ("",))
        assert seen.faults == ()
        if grace == 0:
            await until_gone(client, pod)
            await client.ensure_generation(job.metadata.uid, "second")
            (new,) = await until_running(client, "demo-worker-0")
            await peer.until_held(new)
            assert peer.sighting.generation == "second"


async def test_a_pod_that_vanishes_while_no_watcher_runs_is_told(client: ClusterClient, cluster: LocalCluster) -> None:
    """A pod that vanishes while no watcher runs is reported by the next one, which knows only that its rank has no holder."""
    await client.submit(job_object(pods=2))
    first, second = await until_running(client, "demo-worker-0", "demo-worker-1")
    before, after = Peer(), Peer()
    async with watching(cluster, before):
        await before.until_held(first, second)
    await _vanish(client, second)
    async with watching(cluster, after):
        seen = await after.until_seen(lambda _: True)
    assert seen.holders == (first.metadata.uid[:8], "")
    assert [type(news) for news in after.news] == [Register]


async def test_a_job_that_vanishes_while_no_watcher_runs_ends(client: ClusterClient, cluster: LocalCluster) -> None:
    """The workflow of such a job would stay and show training without a pod, as after each stop and start of `rekindle dev`."""
    living = (await client.submit(job_object())).metadata.uid
    after = Peer()
    after.registered = {living, "gone"}
    async with watching(cluster, after):
        await after.until(lambda: ("gone", End(reason="the job was deleted")) in after.taken)
        await after.until_seen(lambda _: True)
    assert {type(news) for job_id, news in after.taken if job_id == living} <= {Register, Sighted}


async def test_what_happens_while_the_watch_is_broken_is_told(client: ClusterClient) -> None:
    """A broken watch loses nothing: everything is listed again."""
    peer, cluster = Peer(), BreakableCluster(client)
    async with watching(cluster, peer):
        await client.submit(job_object(pods=2))
        first, second = await until_running(client, "demo-worker-0", "demo-worker-1")
        await peer.until_held(first, second)
        await cluster.break_off()
        await client.degrade(first.spec.node_name, "slow", "")
        await _vanish(client, second)
        cluster.reachable.set()
        seen = await peer.until_seen(lambda seen: bool(seen.faults))
        assert seen.holders == (first.metadata.uid[:8], "")
        await cluster.break_off()
        await client.delete_job("demo", 0)
        cluster.reachable.set()
        await peer.until_last(End)
    await cluster.close()


@pytest.mark.parametrize(("steady", "last"), [(0.0, 0.001), (60.0, 0.008)])
async def test_a_watch_that_was_open_for_long_is_opened_again_at_once(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, steady: float, last: float
) -> None:
    """A watch that was open for long is opened again at once, whatever broke earlier. One that breaks as soon as all is listed is
    retried more and more rarely."""
    for name, value in {"REWATCH": 0.001, "LONGEST": 1.0, "STEADY": steady}.items():
        monkeypatch.setattr(watcher, name, value)
    cluster = BreakingCluster(client.socket)
    async with watching(cluster, Peer()):
        await cluster.last.wait()
    assert [record.__dict__["in_seconds"] for record in caplog.records if "interrupted" in record.message] == [
        0.001, 0.002, 0.004, last,
    ]  # fmt: skip
    await cluster.close()


class BreakingCluster(LocalCluster):
    """A cluster whose watch breaks three times before it shows anything, and once after that."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.last = asyncio.Event()
        self._watches = 0

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        self._watches += 1
        if self._watches < 5:
            if self._watches == 4:
                yield Snapshot((), (), ())
            raise ClusterUnavailable("away")
        self.last.set()
        async for change in super().watch():
            yield change


class BreakableCluster(LocalCluster):
    def __init__(self, client: ClusterClient) -> None:
        super().__init__(client.socket)
        self._client_of_test = client
        self.reachable = asyncio.Event()
        self.reachable.set()

    async def break_off(self) -> None:
        """Ends all watches. A new watch shows nothing until the cluster is reachable again."""
        self.reachable.clear()
        await self._client_of_test.break_watches()

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        await self.reachable.wait()
        async for change in super().watch():
            yield change


async def _vanish(client: ClusterClient, pod: Pod) -> None:
    await client.delete_pod(pod.metadata.name, pod.metadata.uid, 0)
    await until_gone(client, pod)


async def test_what_healed_and_ended_while_no_watcher_ran(client: ClusterClient, cluster: LocalCluster) -> None:
    """The next watcher has no memory: the sub-health is gone from its report, and it knows nothing of a job that is gone."""
    before, after = Peer(), Peer()
    async with watching(cluster, before):
        healed = await client.submit(job_object("healed"))
        await client.submit(job_object("deleted"))
        (pod, _) = await until_running(client, "healed-worker-0", "deleted-worker-0")
        await client.degrade(pod.spec.node_name, "slow", "")
        await before.until(lambda: any(seen.faults for seen in before.sightings))
    await client.heal(pod.spec.node_name)
    gone = await client.delete_job("deleted", 0)
    async with watching(cluster, after):
        await after.until(lambda: healed.metadata.uid in {job_id for job_id, _ in after.taken})
        assert not any(seen.faults for seen in after.sightings)
        assert gone.metadata.uid not in {job_id for job_id, _ in after.taken}


async def test_temporal_is_waited_for(client: ClusterClient, cluster: LocalCluster) -> None:
    """An update that fails is retried under the same id, since it may have been accepted, and arrives in the end."""
    peer = Peer()
    peer.failures = [Unavailable("down"), Unavailable("down")]
    await client.submit(job_object())
    await until_running(client, "demo-worker-0")
    async with watching(cluster, peer):
        await peer.until_last(Register)
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {})
        await peer.until(lambda: len(peer.taken) == 2)
    assert peer.update_ids[0] == peer.update_ids[1] == peer.update_ids[2] != peer.update_ids[3]


async def test_old_news_is_not_told(client: ClusterClient, cluster: LocalCluster) -> None:
    """A sub-health that was over before it could be sent is not reported; that there is none is."""
    peer = Peer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        known = len(peer.taken)
        peer.refuses = lambda _: Unavailable("down")
        attempts = peer.attempts
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until(lambda: peer.attempts > attempts)
        await client.heal(pod.spec.node_name)
        peer.refuses = lambda news: Unavailable("old") if isinstance(news, Sighted) and news.sighting.faults else None
        await peer.until(lambda: len(peer.taken) > known)
    assert all(not news.sighting.faults for news in peer.news[known:] if isinstance(news, Sighted))


async def test_a_job_whose_workflow_is_gone_is_registered_again(client: ClusterClient, cluster: LocalCluster) -> None:
    """A job whose workflow is gone is registered again with all that is known. The end of such a job is no error."""
    peer = Peer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        peer.failures = [JobUnknown("gone")]
        await client.degrade(pod.spec.node_name, "slow", "")
        seen = await peer.until_seen(lambda seen: bool(seen.faults))
        assert isinstance(peer.news[-1], Register)
        assert seen.holders == (pod.metadata.uid[:8],)
        peer.refuses = lambda _: JobUnknown("gone")
        attempts = peer.attempts
        await client.delete_job("demo", 0)
        await peer.until(lambda: peer.attempts > attempts)


async def test_a_job_whose_workflow_is_lost_is_registered_again_although_nothing_changes(
    client: ClusterClient, cluster: LocalCluster
) -> None:
    """A person terminated the workflow, and nothing in the cluster shows that."""
    peer = Peer()
    async with watching(cluster, peer):
        job = await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        peer.gone.add(job.metadata.uid)
        await peer.until(lambda: sum(isinstance(one, Register) for one in peer.news) == 2)


async def test_a_job_that_ends_while_lost_workflows_are_looked_for_is_left_alone(
    client: ClusterClient, cluster: LocalCluster
) -> None:
    """A job that ends during the search for lost workflows is left alone: its workflow has ended with it. The watcher
    continues."""

    class SlowPeer(Peer):
        async def has_trained(self, _: str) -> bool:
            return True

        async def lost(self, job_ids: Collection[str]) -> list[str]:
            if job_ids and End not in self.attempted:
                await client.delete_job("demo", 0)
                await until(client, lambda view: not view.jobs)
                await client.submit(job_object("next"))
                await self.until(lambda: self.attempted.count(Register) == 2)
                while any(getattr(task.get_coro(), "__name__", "") == "_reconcile" for task in asyncio.all_tasks()):
                    await asyncio.sleep(0)
                return list(job_ids)
            return []

    peer = SlowPeer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "next-worker-0")
        await peer.until_held(pod)


async def test_a_job_that_cannot_be_read_any_more_when_it_is_told_why_it_is_refused_ends_no_watcher(
    client: ClusterClient,
) -> None:
    """A refused job that its owner changed meanwhile, so that it cannot be read, ends no watcher. Other jobs are registered all
    the same."""

    class Changed(LocalCluster):
        async def record(self, job_id: str, event: ClusterEvent) -> None:
            tried.set()
            raise BadInput("spec.replicatedJobs: means nothing")

    peer, cluster, tried = Peer(), Changed(client.socket), asyncio.Event()
    async with watching(cluster, peer):
        await client.submit(job_object())
        await peer.until_last(Register)
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hot"}, {})
        await asyncio.wait_for(tried.wait(), 60)
        next_one = await client.submit(job_object("next"))
        await peer.until(lambda: next_one.metadata.uid in {job_id for job_id, _ in peer.taken})
    await cluster.close()


async def test_a_refused_registration_is_tried_again_when_everything_is_listed_anew(client: ClusterClient) -> None:
    """A refused registration is retried when everything is listed again, because another version may answer then. The owner
    receives the same refusal once."""
    peer, cluster = Peer(), BreakableCluster(client)
    peer.refuses = lambda news: Refused("later") if isinstance(news, Register) else JobUnknown("never registered")
    async with watching(cluster, peer):
        job = await client.submit(job_object())
        await until_refused(client, "later")
        for _ in range(2):
            attempts = peer.attempted.count(Register)
            await cluster.break_off()
            cluster.reachable.set()
            await peer.until(lambda known=attempts: peer.attempted.count(Register) > known)  # type: ignore[misc]
        peer.refuses = lambda _: None
        await cluster.break_off()
        cluster.reachable.set()
        await peer.until(lambda: job.metadata.uid in {job_id for job_id, _ in peer.taken})
        assert (await _refusals(client)).count("later") == 1
    await cluster.close()


async def test_a_job_that_cannot_be_registered_is_tried_again_when_it_changes(
    client: ClusterClient, cluster: LocalCluster
) -> None:
    """An event of the job reports a refused registration, which is not repeated until the job changes."""
    peer = Peer()
    peer.refuses = lambda news: Refused("no") if isinstance(news, Register) else JobUnknown("never registered")
    async with watching(cluster, peer):
        await client.submit(job_object())
        await until_running(client, "demo-worker-0")
        await until_refused(client, "no")
        await client.patch_job("demo", {"unimportant": "yes"}, {})
        peer.refuses = lambda _: None
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {})
        await peer.until_registered("hotSwitch")
    assert peer.attempted.count(Register) == 2


async def test_a_word_that_means_nothing_costs_no_protection(client: ClusterClient, cluster: LocalCluster) -> None:
    """The workflow learns of another policy at once. An event reports a misspelt one, and faults are reported all the same, by
    this watcher and by the next one."""
    peer, next_one = Peer(), Peer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {})
        await peer.until_registered("hotSwitch")
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hot"}, {})
        await until_refused(client, "'hot' is not accepted", "until then what it said before holds")
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_seen(lambda seen: bool(seen.faults))
        assert isinstance(peer.news[-1], Sighted)
    async with watching(cluster, next_one):
        await next_one.until_seen(lambda seen: bool(seen.faults))
        assert [type(news) for news in next_one.news] == [Sighted]


async def until_refused(client: ClusterClient, *words: str) -> None:
    """Waits until an event of the job contains these texts."""
    async with asyncio.timeout(60):
        while not any(all(word in message for word in words) for message in await _refusals(client)):
            pass


async def _refusals(client: ClusterClient) -> list[str]:
    return [event.message for event in await client.events() if event.reason == "JobRefused"]


async def test_a_refused_sighting_is_not_repeated(client: ClusterClient, cluster: LocalCluster) -> None:
    """An observation that the workflow refuses is dropped, and the next news are sent."""
    peer = Peer()
    async with watching(cluster, peer):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_held(pod)
        peer.refuses = lambda news: Refused("no") if isinstance(news, Sighted) and news.sighting.faults else None
        attempts = peer.attempts
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until(lambda: peer.attempts == attempts + 1)
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {})
        await peer.until_registered("hotSwitch")
    assert peer.attempts == attempts + 2


async def test_pods_that_cannot_be_told_apart_are_told_until_they_can(client: ClusterClient, cluster: LocalCluster) -> None:
    """All problems of the job are reported whenever they change, and none when they are over; a fault is reported beside them."""
    peer = Peer()
    async with watching(cluster, peer):
        await client.submit(job_object(pods=2))
        (pod, other) = await until_running(client, "demo-worker-0", "demo-worker-1")
        await peer.until_held(pod, other)
        await _write_rank(client, other, "0")
        await peer.until_seen(lambda seen: seen.problems == ("pods demo-worker-0 and demo-worker-1 both carry pod rank 0",))
        assert peer.sighting.holders == ("?", "")
        await _write_rank(client, other, "7")
        await peer.until_seen(lambda seen: seen.problems == ("pod rank 7 of pod demo-worker-1 is outside 0 to 1",))
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_seen(lambda seen: bool(seen.problems and seen.faults))
        await _write_rank(client, other, "1")
        await peer.until_held(pod, other)
    assert peer.sighting.problems == ()


async def _write_rank(client: ClusterClient, pod: Pod, rank: str) -> None:
    """Writes another rank on a pod, as a person might."""
    await client.patch_pod(pod.metadata.name, pod.metadata.uid, {}, {RANK_INDEX: rank})


async def test_one_job_that_cannot_be_looked_at_stops_no_other(client: ClusterClient, cluster: LocalCluster) -> None:
    """An unforeseen error of one job affects no other."""
    peer = Peer()
    broken = await client.submit(job_object("broken"))
    peer.refuses = lambda news: ValueError("unthought of") if _is_about(news, broken.metadata.uid) else None
    async with watching(cluster, peer):
        await client.submit(job_object("well"))
        (pod,) = await until_running(client, "well-worker-0")
        await peer.until_held(pod)


class _Mute(Peer):
    """Never answers about one job."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self._mute = job_id
        self.is_asked = asyncio.Event()

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        if job_id == self._mute:
            self.is_asked.set()
            await asyncio.Event().wait()
        await super().send(job_id, news, update_id)


async def test_one_job_that_never_answers_holds_up_no_other(client: ClusterClient, cluster: LocalCluster) -> None:
    """Faults of the other jobs are told while the answer of one is awaited."""
    peer = _Mute((await client.submit(job_object("mute"))).metadata.uid)
    async with watching(cluster, peer):
        await asyncio.wait_for(peer.is_asked.wait(), 60)
        await client.submit(job_object("well"))
        (pod,) = await until_running(client, "well-worker-0")
        await peer.until_held(pod)
        await client.degrade(pod.spec.node_name, "slow", "half speed")
        await peer.until_seen(lambda seen: bool(seen.faults))


def _is_about(news: News, job_id: str) -> bool:
    return isinstance(news, Register) and news.registration.job.id == job_id
