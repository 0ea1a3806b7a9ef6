"""The watcher over a real cluster, telling a scripted peer in the place of Temporal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from activities.local import LocalCluster
from rekindle.cluster_client import ClusterClient
from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.model.cluster import JobObject
from rekindle.model.fault import FaultKind
from rekindle.model.keys import RANK_INDEX, SUB_HEALTHY_STRATEGY
from rekindle.policy.intake import Tell, TellKind
from tests.support.cluster import job_object, until_gone, until_running
from workers.telling import JobUnknown, Memory
from workers.watcher import Watcher


class Peer:
    """Takes what the watcher tells; may be told to fail first."""

    def __init__(self) -> None:
        self.tells: list[tuple[str, Tell]] = []
        self.attempts = 0
        self.failures: list[Exception] = []
        self.refuses: Callable[[Tell], Exception | None] = lambda _: None
        self._changed = asyncio.Condition()

    async def tell(self, job_id: str, tell: Tell, job: JobObject | None) -> None:
        async with self._changed:
            self.attempts += 1
            self._changed.notify_all()
            if self.failures:
                raise self.failures.pop(0)
            if error := self.refuses(tell):
                raise error
            self.tells.append((job_id, tell))

    async def until(self, satisfied: Callable[[], bool]) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(satisfied)

    async def until_told(self, *kinds: TellKind) -> list[Tell]:
        """What was told, as soon as it is as many things as these kinds."""
        await self.until(lambda: len(self.tells) >= len(kinds))
        assert [tell.kind for _, tell in self.tells] == list(kinds)
        return [tell for _, tell in self.tells]


@asynccontextmanager
async def watching(client: ClusterClient, peer: Peer, memory: Path) -> AsyncIterator[None]:
    """A watcher, until the block ends."""
    cluster = LocalCluster(client.socket)
    task = asyncio.create_task(Watcher(cluster, peer, Memory(memory)).run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await cluster.close()


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "watcher.json"


REGISTER, FAULT, CLEARED, END = TellKind.REGISTER, TellKind.FAULT, TellKind.CLEARED, TellKind.END
PROBLEMS = TellKind.PROBLEMS


async def test_the_life_of_a_job_is_told(client: ClusterClient, memory: Path) -> None:
    """Registered when submitted, sick and healed with its node, ended when deleted, each once."""
    peer = Peer()
    async with watching(client, peer, memory):
        job = await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        await client.degrade(pod.spec.node_name, "slow", "half speed")
        await peer.until_told(REGISTER, FAULT)
        await client.heal(pod.spec.node_name)
        await peer.until_told(REGISTER, FAULT, CLEARED)
        await client.delete_job("demo", 0)
        told = await peer.until_told(REGISTER, FAULT, CLEARED, END)
    fault = told[1].fault
    assert fault is not None
    assert (fault.kind, fault.node, fault.code, fault.pod_ranks) == (FaultKind.SUB_HEALTH, pod.spec.node_name, "slow", (0,))
    assert told[2].episode == fault.episode
    assert {job_id for job_id, _ in peer.tells} == {job.metadata.uid}


async def test_a_lost_node_and_its_pod_are_told(client: ClusterClient, memory: Path) -> None:
    """A node that is lost is one fault, and the pod that it took another."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        await client.take_down(pod.spec.node_name)
        _, first, second = await peer.until_told(REGISTER, FAULT, FAULT)
    assert first.fault is not None
    assert second.fault is not None
    assert (first.fault.kind, second.fault.kind) == (FaultKind.NODE, FaultKind.POD)
    assert second.fault.pod_uid == pod.metadata.uid


async def test_a_pod_that_rekindle_deletes_is_no_fault(client: ClusterClient, memory: Path) -> None:
    """A deleted pod and its replacement are told to nobody."""
    peer = Peer()
    async with watching(client, peer, memory):
        job = await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await client.delete_pod(pod.metadata.name, pod.metadata.uid, 0)
        await until_gone(client, pod)
        await client.ensure_generation(job.metadata.uid, "second")
        await until_running(client, "demo-worker-0")
        await client.degrade("node-0", "slow", "")
        told = await peer.until_told(REGISTER, FAULT)
    assert told[1].fault is not None
    assert told[1].fault.kind is FaultKind.SUB_HEALTH


async def test_what_happens_while_the_watch_is_broken_is_told(client: ClusterClient, memory: Path) -> None:
    """Broken watches lose nothing: the world is listed again."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        await client.break_watches()
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_told(REGISTER, FAULT)
        await client.break_watches()
        await client.delete_job("demo", 0)
        await peer.until_told(REGISTER, FAULT, END)


async def test_temporal_is_waited_for(client: ClusterClient, memory: Path) -> None:
    """While nothing can be told it is tried again, and told in the end."""
    peer = Peer()
    peer.failures = [Unavailable("down"), Unavailable("down")]
    async with watching(client, peer, memory):
        await client.submit(job_object())
        await peer.until_told(REGISTER)
    assert peer.attempts == 3


async def test_old_news_is_not_told(client: ClusterClient, memory: Path) -> None:
    """A sub-health that was over before it could be told is told to nobody."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        peer.refuses = lambda _: Unavailable("down")
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until(lambda: peer.attempts >= 2)
        await client.heal(pod.spec.node_name)
        await client.delete_job("demo", 0)
        peer.refuses = lambda _: None
        await peer.until_told(REGISTER, END)


async def test_a_job_whose_workflow_is_gone_is_registered_again(client: ClusterClient, memory: Path) -> None:
    """A fault that no workflow takes leads to another registration, and is told after it."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        peer.failures = [JobUnknown("gone")]
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_told(REGISTER, REGISTER, FAULT)


@pytest.mark.parametrize("error", [BadInput("labels: no"), Refused("no")])
async def test_a_job_that_cannot_be_registered_is_tried_again_when_it_changes(
    client: ClusterClient, memory: Path, error: Exception
) -> None:
    """A refused registration is not repeated until the job object is another."""
    peer = Peer()
    peer.failures = [error]
    async with watching(client, peer, memory):
        await client.submit(job_object())
        await peer.until(lambda: peer.attempts == 1)
        await until_running(client, "demo-worker-0")
        await client.patch_job("demo", {"mended": "yes"}, {})
        await peer.until_told(REGISTER)
    assert peer.attempts == 2


async def test_what_an_owner_changes_is_registered_and_a_word_that_means_nothing_costs_no_protection(
    client: ClusterClient, memory: Path
) -> None:
    """The workflow learns of another policy at once. A misspelt one is said on the job, and faults are told all the same, by this
    watcher and by the next one."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {})
        await peer.until_told(REGISTER, REGISTER)
        peer.refuses = lambda tell: BadInput("'hot' is not accepted") if tell.kind is REGISTER else None
        await client.patch_job("demo", {SUB_HEALTHY_STRATEGY: "hot"}, {})
        await peer.until(lambda: peer.attempts == 3)
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_told(REGISTER, REGISTER, FAULT)
        assert peer.attempts == 4
        async with asyncio.timeout(20):
            while "'hot' is not accepted; until then what it said before holds" not in await _refusals(client):
                pass
    async with watching(client, peer, memory):
        await peer.until_told(REGISTER, REGISTER, FAULT, FAULT)
    assert peer.attempts == 6


async def _refusals(client: ClusterClient) -> list[str]:
    return [event.message for event in await client.events() if event.reason == "JobRefused"]


async def test_a_refused_fault_is_not_repeated(client: ClusterClient, memory: Path) -> None:
    """What the workflow does not want is dropped, and the next news are told."""
    peer = Peer()
    peer.refuses = lambda tell: Refused("no") if tell.kind is FAULT else None
    async with watching(client, peer, memory):
        await client.submit(job_object())
        (pod,) = await until_running(client, "demo-worker-0")
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until(lambda: peer.attempts >= 2)
        await client.delete_job("demo", 0)
        await peer.until_told(REGISTER, END)
    assert peer.attempts == 3


async def test_a_new_watcher_takes_back_what_is_over(client: ClusterClient, memory: Path) -> None:
    """A watcher that starts later clears what healed and ends what was deleted while nobody watched."""
    first, second = Peer(), Peer()
    async with watching(client, first, memory):
        await client.submit(job_object("healed"))
        await client.submit(job_object("deleted"))
        (pod, _) = await until_running(client, "healed-worker-0", "deleted-worker-0")
        await client.degrade(pod.spec.node_name, "slow", "")
        await first.until(lambda: len(first.tells) >= 3)
    await client.heal(pod.spec.node_name)
    gone = await client.delete_job("deleted", 0)
    healed = await client.job("healed")
    async with watching(client, second, memory):
        await second.until(lambda: len(second.tells) >= 3)
    told = {(job_id, tell.kind) for job_id, tell in second.tells}
    assert told == {(gone.metadata.uid, END), (healed.metadata.uid, REGISTER), (healed.metadata.uid, CLEARED)}


async def _write_rank(client: ClusterClient, name: str, rank: str) -> None:
    """Somebody writes another rank on a pod."""
    await client.patch_pod(name, (await client.pod(name)).metadata.uid, {}, {RANK_INDEX: rank})


async def test_pods_that_cannot_be_told_apart_are_told_until_they_can(client: ClusterClient, memory: Path) -> None:
    """All problems of the job whenever they change, and none when they are over; a fault is told beside them."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object(pods=2))
        (pod, _) = await until_running(client, "demo-worker-0", "demo-worker-1")
        await peer.until_told(REGISTER)
        await _write_rank(client, "demo-worker-1", "0")
        await peer.until_told(REGISTER, PROBLEMS)
        await _write_rank(client, "demo-worker-1", "7")
        await peer.until_told(REGISTER, PROBLEMS, PROBLEMS)
        await client.degrade(pod.spec.node_name, "slow", "")
        await peer.until_told(REGISTER, PROBLEMS, PROBLEMS, FAULT)
        await _write_rank(client, "demo-worker-1", "1")
        told = await peer.until_told(REGISTER, PROBLEMS, PROBLEMS, FAULT, PROBLEMS)
    assert [tell.problems for tell in told if tell.kind is not FAULT] == [
        (),
        ("pods demo-worker-0 and demo-worker-1 both carry pod rank 0",),
        ("pod rank 7 of pod demo-worker-1 is outside 0 to 1",),
        (),
    ]


async def test_problems_are_told_again_by_a_new_watcher(client: ClusterClient, memory: Path) -> None:
    """Its registration carries what is wrong, or that nothing is any more, whatever the one before it told."""
    peers = [Peer(), Peer(), Peer()]
    async with watching(client, peers[0], memory):
        await client.submit(job_object())
        await until_running(client, "demo-worker-0")
        await peers[0].until_told(REGISTER)
        await _write_rank(client, "demo-worker-0", "one")
        await peers[0].until_told(REGISTER, PROBLEMS)
    async with watching(client, peers[1], memory):
        await peers[1].until_told(REGISTER)
    await _write_rank(client, "demo-worker-0", "0")
    async with watching(client, peers[2], memory):
        await peers[2].until_told(REGISTER)
    assert [peer.tells[0][1].problems for peer in peers] == [
        (),
        ("pod rank 'one' of pod demo-worker-0 is not a number from 0 to 0",),
        (),
    ]


async def test_problems_that_could_not_be_told_are_told_as_they_are_by_then(client: ClusterClient, memory: Path) -> None:
    """A tell that nobody confirmed may have been carried out: its end is told, even if the problem is over again."""
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        await until_running(client, "demo-worker-0")
        await peer.until_told(REGISTER)
        peer.refuses = lambda tell: Unavailable("down") if tell.problems else None
        await _write_rank(client, "demo-worker-0", "7")
        await peer.until(lambda: peer.attempts >= 2)
        await _write_rank(client, "demo-worker-0", "0")
        told = await peer.until_told(REGISTER, PROBLEMS)
    assert told[1].problems == ()


async def test_an_unreadable_memory_is_begun_anew(client: ClusterClient, memory: Path) -> None:
    """A damaged file keeps nobody from watching."""
    memory.write_text("{damaged")
    peer = Peer()
    async with watching(client, peer, memory):
        await client.submit(job_object())
        await peer.until_told(REGISTER)
