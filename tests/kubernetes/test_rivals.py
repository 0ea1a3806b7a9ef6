"""No process of ours starts beside a ClusterD that is alive, unless a setting allows it; on a real API server."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from rekindle.errors import ClusterUnavailable, Conflict, Forbidden, NotFound, Refused
from rekindle.settings import Settings
from tests.gateway.processes import started
from tests.kubernetes.world.control_plane import Namespace
from workers.other_controller import NAMESPACE, PART_OF, SERVICE, refuse_beside_another_controller

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
ALIVE: Object = {"ready": True}


class Installation:
    """The objects of ClusterD's namespace, which all tests of this server share."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def service(self, **labels: str) -> None:
        await self._remove(SERVICES, SERVICE)
        body = {"metadata": {"name": SERVICE, "labels": labels}, "spec": {"ports": [{"port": 8899}]}}
        await self.api.create(SERVICES, body)

    async def endpoint(self, name: str, address: str, conditions: Object) -> None:
        labels = {"kubernetes.io/service-name": SERVICE}
        endpoints = [{"addresses": [address], "conditions": conditions}]
        body = {"metadata": {"name": name, "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
        await self.api.create(SLICES, body)

    async def clear(self) -> None:
        await self._remove(SERVICES, SERVICE)
        for one in (await self.api.list(SLICES, labelSelector=f"kubernetes.io/service-name={SERVICE}")).items:
            await self._remove(SLICES, one["metadata"]["name"])

    async def _remove(self, path: str, name: str) -> None:
        with suppress(NotFound):
            found = await self.api.get(f"{path}/{name}")
            await self.api.delete(f"{path}/{name}", found["metadata"]["uid"])


@pytest.fixture
async def installation(kubeconfig: Path) -> AsyncIterator[Installation]:
    async with Api(kubeconfig) as api:
        with suppress(Conflict):
            await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        installation = Installation(api)
        await installation.clear()
        try:
            yield installation
        finally:
            await installation.clear()


async def test_a_clusterd_that_is_alive_is_refused(installation: Installation) -> None:
    """The refusal names its service, its addresses and both ways out."""
    await installation.service(app="clusterd")
    await installation.endpoint("a", "10.9.9.9", ALIVE)
    with pytest.raises(Refused) as refused:
        await refuse_beside_another_controller(installation.api, Settings())
    for word in (SERVICE, NAMESPACE, "10.9.9.9", "REKINDLE_TAKE_OVER=true", "REKINDLE_OBSERVE=true"):
        assert word in str(refused.value)


@pytest.mark.parametrize("changes", [{"take_over": True}, {"observe": True}], ids=["take over", "observe"])
async def test_who_knows_of_the_other_may_start(installation: Installation, changes: dict[str, Any]) -> None:
    """Either of the two settings is enough."""
    await installation.service(app="clusterd")
    await installation.endpoint("a", "10.9.9.9", ALIVE)
    await refuse_beside_another_controller(installation.api, Settings(**changes))


@pytest.mark.parametrize(
    ("conditions", "alive"),
    [
        ({"ready": True}, True),
        ({}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
    ],
    ids=str,
)
async def test_only_an_endpoint_that_is_ready_is_alive(installation: Installation, conditions: Object, *, alive: bool) -> None:
    """An endpoint without a condition counts as ready; one that terminates does not."""
    await installation.service(app="clusterd")
    await installation.endpoint("gone", "10.9.9.8", {"ready": False})
    await installation.endpoint("here", "10.9.9.9", conditions)
    if alive:
        with pytest.raises(Refused, match=r"\(10\.9\.9\.9\)"):
            await refuse_beside_another_controller(installation.api, Settings())
    else:
        await refuse_beside_another_controller(installation.api, Settings())


async def test_our_own_service_is_no_rival(installation: Installation) -> None:
    """Our own Service is no rival: it has ClusterD's name, since clients look for that name, and our label."""
    await installation.service(**{"app": "clusterd", PART_OF: "rekindle"})
    await installation.endpoint("a", "10.9.9.9", ALIVE)
    await refuse_beside_another_controller(installation.api, Settings())


async def test_without_a_service_or_its_pods_nobody_is_refused(installation: Installation) -> None:
    """A ClusterD that was never installed, or was scaled to nothing."""
    await refuse_beside_another_controller(installation.api, Settings())
    await installation.service(app="clusterd")
    await refuse_beside_another_controller(installation.api, Settings())


async def test_who_may_not_look_is_told_what_it_lacks(
    installation: Installation, namespace: Namespace, kubeconfig: Path, tmp_path: Path
) -> None:
    """The API server's message names verb, resource and namespace."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"]["token"] = await namespace.token_of("nobody")
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    async with Api(tmp_path / "config") as api:
        with pytest.raises(Forbidden, match=rf'cannot get resource "services" .* in the namespace "{NAMESPACE}"'):
            await refuse_beside_another_controller(api, Settings())


async def test_an_api_server_that_naps_is_asked_again(installation: Installation, kubeconfig: Path) -> None:
    """A missing answer is neither a yes nor a no, and the request is retried."""

    class Napping(Api):
        naps = 2

        async def get(self, path: str) -> Object:
            if self.naps:
                self.naps -= 1
                raise ClusterUnavailable("it naps", retry_after=0.01)
            return await super().get(path)

    await installation.service(app="clusterd")
    await installation.endpoint("a", "10.9.9.9", ALIVE)
    async with Napping(kubeconfig) as api:
        with pytest.raises(Refused):
            await refuse_beside_another_controller(api, Settings())
        assert api.naps == 0


@pytest.mark.parametrize("name", ["control", "watcher"])
async def test_a_process_beside_a_clusterd_ends_with_the_reason(
    installation: Installation, kubeconfig: Path, tmp_path: Path, name: str
) -> None:
    """The process exits with code 1 and one sentence on stderr, before it asks Temporal for anything."""
    await installation.service(app="clusterd")
    await installation.endpoint("a", "10.9.9.9", ALIVE)
    async with started(name, tmp_path, REKINDLE_CLUSTER="kubernetes", REKINDLE_KUBECONFIG=kubeconfig) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    last = errors.decode().splitlines()[-1]
    assert last.startswith("error: a ClusterD is alive: ")
    assert "Traceback" not in errors.decode()
    assert "Unclosed" not in errors.decode()
