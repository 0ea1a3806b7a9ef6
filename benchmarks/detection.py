"""How long it takes from a change of a cluster until the watch shows the fault: `python -P -m benchmarks.detection`.

On the real control plane of the tests, with a watch as the watcher has it. A node's condition and its annotation come and go.
"""

import asyncio
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from activities.clusters.api_server import Api
from activities.clusters.kubernetes.driver import KubernetesCluster
from rekindle.model.cluster import Node, WatchEvent
from rekindle.model.keys import HEALTH
from rekindle.policy.rules import of_node
from rekindle.settings import Settings
from tests.support.kubernetes import local_kubernetes

NODE, ROUNDS = "benchmarked", 100


async def measure(kubeconfig: Path) -> list[float]:
    """Seconds of each change, from before the request to the server until the decision."""
    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig)
    decided: asyncio.Queue[bool] = asyncio.Queue()
    async with Api(kubeconfig) as api:
        cluster = KubernetesCluster(Api(kubeconfig), settings)
        await api.create("/api/v1/nodes", {"metadata": {"name": NODE}})

        async def follow() -> None:
            async with aclosing(cluster.watch()) as changes:
                async for one in changes:
                    if not isinstance(one, WatchEvent):
                        decided.put_nowait(False)
                    elif isinstance(one.object, Node) and one.object.metadata.name == NODE:
                        decided.put_nowait(bool(of_node(one.object, cluster.rules)))

        following, seconds = asyncio.create_task(follow()), []
        await decided.get()
        for number in range(ROUNDS):
            sick = number % 2 == 0
            began = time.perf_counter()
            await api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {HEALTH: "sick" if sick else None}}})
            while await decided.get() != sick:
                pass
            seconds.append(time.perf_counter() - began)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await cluster.close()
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rk-") as directory, local_kubernetes(Path(directory)) as kubeconfig:
        seconds = asyncio.run(measure(kubeconfig))
    milliseconds = sorted(1000 * one for one in seconds)
    median, worst = statistics.median(milliseconds), milliseconds[-1]
    print(f"{ROUNDS} changes: median {median:.1f} ms, 95% {milliseconds[int(0.95 * ROUNDS)]:.1f} ms, worst {worst:.1f} ms")


if __name__ == "__main__":
    main()
