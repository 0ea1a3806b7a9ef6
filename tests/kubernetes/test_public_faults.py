"""Public faults that arrive by gRPC are kept in the real API server and seen by the real watch."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Api, Listing, Object
from activities.clusters.kubernetes.public_faults import KEY, MOST, OURS, PublicFaults
from activities.clusters.kubernetes.reports import of_public_fault
from rekindle.errors import BadInput, NotFound
from rekindle.model.keys import SERIAL_NUMBER
from rekindle.model.public_fault import Envelope, PublicFault
from simulators.kubernetes.installation import DEPLOY
from tests.fakes.public_fault_peer import NOW, fault, request, send
from tests.gateway.test_public_faults import served
from tests.kubernetes.test_detection import NODE, ensure_namespace, put, shown
from tests.kubernetes.world.control_plane import Namespace

CONFIG_MAPS = "/api/v1/namespaces/cluster-system/configmaps"


@pytest.fixture
async def node(namespace: Namespace) -> AsyncIterator[Namespace]:
    made = await namespace.api.create("/api/v1/nodes", {"metadata": {"name": NODE, "annotations": {SERIAL_NUMBER: "SN1"}}})
    yield namespace
    await namespace.api.delete(f"/api/v1/nodes/{NODE}", made["metadata"]["uid"])
    for one in await kept(namespace):
        await namespace.api.delete(f"{CONFIG_MAPS}/{one['metadata']['name']}", one["metadata"]["uid"])


async def kept(namespace: Namespace) -> Sequence[Object]:
    selector = ",".join(f"{key}={value}" for key, value in OURS.items())
    return (await namespace.api.list(CONFIG_MAPS, labelSelector=selector)).items


@asynccontextmanager
async def gateway(namespace: Namespace, kubeconfig: Path, directory: Path, behind: float = 0.0) -> AsyncIterator[str]:
    """Yields the address of a gateway that has the rights of the gateway's account.

    Args:
        behind: seconds by which its clock is slow, so that no test has to wait.
    """
    own = directory / "teller"
    if not own.exists():
        await namespace.kubeconfig_of("teller", kubeconfig, directory)
    await ensure_namespace(namespace.api, "cluster-system")
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/cluster-system"
    for thing in yaml.safe_load_all((DEPLOY / "components" / "rules-ascend" / "rbac.yaml").read_text()):
        if thing["metadata"]["name"] == "rekindle-public-faults":
            if thing["kind"] == "RoleBinding":
                assert [one["name"] for one in thing["subjects"]] == ["rekindle-gateway"]
                thing["subjects"] = [{"kind": "ServiceAccount", "name": "teller", "namespace": namespace.name}]
            await put(namespace.api, f"{rbac}/{thing['kind'].lower()}s", thing)
    async with Api(own) as api, served(PublicFaults(api, lambda: time.time() - behind)) as target:  # type: ignore[arg-type]
        yield target


async def test_what_is_told_is_seen_until_it_has_recovered(kubeconfig: Path, node: Namespace, tmp_path: Path) -> None:
    """A public fault is seen until it has recovered, by the node's name or its serial number. Another gateway that receives the
    same fault changes nothing, and finished faults are deleted."""
    async with gateway(node, kubeconfig, tmp_path, behind=6) as target, shown(kubeconfig, "ascend") as seen:
        await seen.until_found()
        named = [{"nodeName": NODE, "deviceIds": [0]}]
        for _ in range(2):
            assert (await send(target, request(fault(influence=named))))[0] == 0
        await seen.until_found("ascend/public-broken")
        assert len(await kept(node)) == 1
        assert (await send(target, request(fault(influence=named, assertion="recover"))))[0] == 0
        await seen.until_found()
        numbered = [{"nodeSN": "SN1", "deviceIds": [0]}]
        assert (await send(target, request(fault("010001002", influence=numbered, faultId="degraded-1"))))[0] == 0
        await seen.until_found("ascend/public-degraded")
    async with gateway(node, kubeconfig, tmp_path) as target, shown(kubeconfig, "ascend") as seen:
        assert (await send(target, request(fault("010001002", "recover", influence=numbered, faultId="degraded-1"))))[0] == 0
        await seen.until_found()
        assert len(await kept(node)) == 1, "the first one was swept"


async def test_what_comes_once_is_over_by_itself(kubeconfig: Path, node: Namespace, tmp_path: Path) -> None:
    """A public fault that occurs once is over after its time, without a message of its end."""
    async with gateway(node, kubeconfig, tmp_path, behind=3.5) as target, shown(kubeconfig, "ascend") as seen:
        await seen.until_found()
        named = [{"nodeName": NODE, "deviceIds": [0]}]
        assert (await send(target, request(fault(influence=named, assertion="once", faultId="only-once"))))[0] == 0
        await seen.until_found("ascend/public-broken")
        await seen.until_found()


async def test_what_is_told_anew_while_another_gateway_sweeps_it_away_stays(node: Namespace) -> None:
    """A finished fault that is reported again while another gateway deletes it stays. The other gateway had read it as
    finished."""
    await ensure_namespace(node.api, "cluster-system")
    envelope, clock = Envelope.model_validate(request()), [time.time() - 60]
    known = PublicFaults(node.api, lambda: clock[0])
    for assertion in ("occur", "recover"):
        await known.tell(envelope, PublicFault.model_validate(fault(assertion=assertion)))
    clock[0] += 60

    class Slow:
        """Lets time pass between its read and the deletion that follows."""

        def __getattr__(self, name: str) -> object:
            return getattr(node.api, name)

        async def list(self, path: str, **selectors: str) -> Listing:
            listed = await node.api.list(path, **selectors)
            await known.tell(envelope, PublicFault.model_validate(fault()))
            return listed

    other = PublicFaults(Slow(), time.time)  # type: ignore[arg-type]
    await other.tell(envelope, PublicFault.model_validate(fault(faultId="another-one")))
    assert len(await kept(node)) == 2


async def test_a_fault_that_recovers_is_until_its_end_the_one_that_was_told(node: Namespace) -> None:
    """The time of its recovery does not make it another fault, for which a job would be recovered again."""
    await ensure_namespace(node.api, "cluster-system")
    keeps, envelope, seen = PublicFaults(node.api), Envelope.model_validate(request()), []
    for seconds, assertion in ((0, "occur"), (2, "recover")):
        told = fault(assertion=assertion, faultTime=NOW + 1000 * seconds, description=f"after {seconds} s")
        await keeps.tell(envelope, PublicFault.model_validate(told))
        (thing,) = await kept(node)
        (report,) = of_public_fault(thing)["node-0"]
        seen.append((report.since, report.message))
    assert seen[0] == seen[1]


async def test_a_fault_does_not_wait_until_thousands_are_swept_away() -> None:
    """A new fault does not wait until thousands of finished ones are deleted, which stood on all nodes of a cluster and recovered
    together."""
    over = {"node": "node-0", "devices": [0], "told_at": 1, "until": 2}
    data = {KEY: json.dumps({"faults": [{"concerned": [over]}]})}
    made, deleted = list[Object](), list[str]()

    class Full:
        async def list(self, path: str, **_: str) -> Listing:
            things = (
                {"metadata": {"name": f"f{n}", "uid": f"{n}", "resourceVersion": "1"}, "data": data} for n in range(MOST + 900)
            )
            return Listing([one for one in things if one["metadata"]["name"] not in deleted], "1")

        async def delete(self, path: str, uid: str, version: str) -> None:
            deleted.append(path.rpartition("/")[2])

        async def get(self, path: str) -> Object:
            raise NotFound(path)

        async def create(self, path: str, body: Object) -> Object:
            made.append(body)
            return body

    keeps = PublicFaults(Full())  # type: ignore[arg-type]
    for number in range(5):
        with contextlib.suppress(BadInput):
            await keeps.tell(Envelope.model_validate(request()), PublicFault.model_validate(fault(faultId=f"new-fault-{number}")))
        assert len(deleted) <= 200 * (number + 1)
    assert made
