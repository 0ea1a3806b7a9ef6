"""Recoveries do not poll the API server where a watch serves. The number of requests grows with the job only where it must."""

import asyncio
from pathlib import Path

from tests.kubernetes.world.worlds import WORLDS, KubernetesWorld

HOT_SWITCH = 15
"""Requests of the calls below, one of which looks for a standby; the activities around them read a few pods more."""


async def counted_hot_switch(world: KubernetesWorld, pods: int) -> int:
    job = await world.job(pods, accelerators=0)  # with five of six taken, the free one may be on the very node to leave
    old = await world.holder(job, 1)
    world.proxy.requests.clear()
    backup = await world.cluster.ensure_backup(old, "spare", ())
    await world.until_runs(job, backup)
    await world.cluster.ensure_deleted(job, old.metadata.name, old.metadata.uid, 0)
    await world.until_gone(job, old)
    await world.cluster.ensure_promoted(job, backup.metadata.name, backup.metadata.uid)
    return len(world.proxy.requests)


async def test_a_hot_switch_asks_no_more_for_a_larger_job(kubeconfig: Path, tmp_path: Path) -> None:
    """The number of requests is bounded, and the same for two pods and for five."""
    for pods in (2, 5):
        (directory := tmp_path / str(pods)).mkdir()
        async with WORLDS["direct, TrainingJob"](kubeconfig, directory) as world:
            assert await counted_hot_switch(world, pods) <= HOT_SWITCH


async def test_many_who_look_at_all_nodes_at_once_share_two_looks(kubeconfig: Path, tmp_path: Path) -> None:
    """Callers who ask for all nodes at once share two lists: one that was under way, and one after it. No caller receives a state
    from before its request."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        world.proxy.requests.clear()
        seen = await asyncio.gather(*(world.cluster.nodes() for _ in range(20)))
        assert len({tuple(node.metadata.name for node in nodes) for nodes in seen}) == 1
        assert [path for _, path in world.proxy.requests].count("/api/v1/nodes") <= 2


async def test_a_wait_is_one_list_and_one_watch(kubeconfig: Path, tmp_path: Path) -> None:
    """A wait is one list and one watch, however long it takes and however many changes it sees."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        job = await world.job(2)
        world.proxy.requests.clear()
        pods = await world.cluster.pods(job)
        asked = len(world.proxy.requests)
        gone = {pod.metadata.uid for pod in pods}
        for pod in pods:
            await world.namespace.api.delete(world.namespace.path("pods", pod.metadata.name), pod.metadata.uid, 1)
        await world.until(job, lambda seen: not gone & {pod.metadata.uid for pod in seen})
        waited = world.proxy.requests[asked:]
        assert sum(method == "WATCH" for method, _ in waited) <= 1
        assert len(waited) <= 3
