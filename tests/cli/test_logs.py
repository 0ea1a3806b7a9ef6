"""`rekindle logs` prints what pods wrote, whatever happens to them meanwhile."""

from collections.abc import AsyncGenerator
from pathlib import Path

from rekindle.cli.logs import _log_of
from rekindle.cluster_client import ClusterClient
from rekindle.errors import NotFound
from rekindle.model.cluster import ObjectMeta, Pod, PodSpec


class Restarting(ClusterClient):
    """A cluster in which every listed pod is gone by the time its log is requested."""

    async def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> AsyncGenerator[str, None]:
        nothing: tuple[str, ...] = ()
        for piece in nothing:
            yield piece
        raise NotFound(f"no pod is named {name}")


async def test_a_pod_that_goes_between_list_and_log_has_left_its_log(tmp_path: Path) -> None:
    """A pod that ends between list and log has left its log in the job's directory. Its job may be restarted at any moment."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "gpt-worker-1.0a1b2c3d.log").write_text("I train\n")
    pod = Pod(metadata=ObjectMeta(name="gpt-worker-1", uid="0a1b2c3d-0000"), spec=PodSpec(command=("train",)))
    async with Restarting(tmp_path / "socket") as cluster:
        assert [piece async for piece in _log_of(pod, cluster, tmp_path, follow=False)] == ["I train\n"]
