"""Objects of each kind, broken anywhere, pass through the whole watcher and the whole operator: neither ends, and valid objects
after them are served. Names, namespaces and UIDs are as the API server admits them, and so are the types of labels and
annotations."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.clusters.api_server import BOOKMARK, Change, Listing, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import BATCH_JOB, KINDS, TRAINING_JOB
from activities.clusters.kubernetes.watch import NODES
from activities.clusters.port import Snapshot
from rekindle.errors import NotFound
from rekindle.model import keys
from rekindle.model.cluster import Node, WatchEvent
from rekindle.model.fault import Sighting
from rekindle.policy.detection.sighting import sight
from rekindle.settings import Settings
from tests.fuzz.broken import broken, fuzzed, text
from tests.kubernetes.test_reports import card, config_map, device_info, event, kept, public
from tests.support.job_views import pod as a_pod
from tests.support.job_views import view
from tests.support.valid_objects import JOBS, node, pod
from workers.operator import Operator

PODS = "/api/v1/pods"
WITHIN = 20.0


class Served:
    """An API server in memory: its first list, its later changes, and the objects that were created."""

    def __init__(self) -> None:
        self.listed: dict[str, list[Object]] = {}
        self.changes: dict[str, list[Object]] = {}
        self.made: list[str] = []
        self.something_made = asyncio.Event()

    async def watch(self, path: str, since: str, **selectors: str) -> AsyncGenerator[Change, None]:
        for thing in copy.deepcopy(self.changes.get(_one(path, selectors), [])):
            yield Change("ADDED", thing)
            yield Change("MODIFIED", thing)
        await asyncio.Event().wait()

    async def get(self, path: str) -> Object:
        raise NotFound(path)

    async def create(self, path: str, body: Object) -> Object:
        self.made.append(body["metadata"]["name"])
        self.something_made.set()
        return body

    async def patch(self, path: str, body: Object) -> Object:
        jobs = {TRAINING_JOB.path("default", one["metadata"]["name"]): one for one in self.all(TRAINING_JOB.path())}
        return {**jobs[path.removesuffix("/status")], "status": body["status"]}

    def all(self, path: str) -> list[Object]:
        return [*self.listed.get(path, []), *self.changes.get(path, [])]

    def put(self, path: str, *things: Object, later: bool) -> None:
        (self.changes if later else self.listed).setdefault(path, []).extend(things)

    async def pages(self, path: str, **selectors: str) -> AsyncGenerator[Listing, None]:
        yield Listing(copy.deepcopy(self.listed.get(_one(path, selectors), [])), "1")

    metadata = pages

    async def list(self, path: str, **selectors: str) -> Listing:
        return await anext(self.pages(path, **selectors))

    async def everything(self, path: str, **selectors: str) -> AsyncGenerator[Change, None]:
        for thing in copy.deepcopy(self.listed.get(_one(path, selectors), [])):
            yield Change("ADDED", thing)
        yield Change(BOOKMARK, {"metadata": {"resourceVersion": "1"}})


def _one(path: str, selectors: dict[str, str]) -> str:
    """Returns the path of one object, where it is selected by its name."""
    field, _, name = selectors.get("fieldSelector", "").partition("=")
    return f"{path}/{name}" if field == "metadata.name" else path


def named(thing: Object, name: str) -> Object:
    found = copy.deepcopy(thing)
    found["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
    return found


def of(job: str, kind: Kind, name: str) -> Object:
    made = named(pod("", name), name)
    owner = {"apiVersion": kind.api_version, "kind": kind.name, "name": job, "uid": f"uid-of-{job}", "controller": True}
    made["metadata"] |= {"ownerReferences": [owner]}
    return made


words = st.dictionaries(
    st.sampled_from((*keys.LABELS, *keys.ANNOTATIONS, keys.MEMORY, keys.RANK_INDEX, keys.JOB_ID)), text, max_size=4
)


@st.composite
def hostile(draw: st.DrawFn, thing: Object) -> Object:
    """Draws an object with broken content, and with labels and annotations of any text."""
    found = copy.deepcopy(thing)
    inside = draw(broken({key: found[key] for key in ("spec", "status") if key in found}))
    metadata = found["metadata"]
    metadata["labels"] = {**metadata["labels"], **draw(words)}
    metadata["annotations"] = {**metadata["annotations"], **draw(words)}
    return {**found, "spec": {}, **(inside if isinstance(inside, dict) else {})}


async def seen_behind(served: Served, wanted: str) -> None:
    """Reads the watch until the valid object after the hostile one is seen."""
    cluster = KubernetesCluster(cast(Any, served), Settings(cluster="kubernetes"))
    async with asyncio.timeout(WITHIN), aclosing(cluster.watch()) as news:
        first = await anext(news)
        assert isinstance(first, Snapshot)
        there = (
            [one.metadata for one in first.jobs] + [one.metadata for one in first.pods] + [one.metadata for one in first.nodes]
        )
        assert "before" in {one.name for one in there}
        async for event in news:
            assert isinstance(event, WatchEvent)
            if event.object.metadata.name == wanted:
                return


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(data=st.data())
@fuzzed
def test_no_job_ends_the_watch(kind: Kind, data: st.DataObject) -> None:
    """A hostile job may be in the first list or come after it."""

    async def run() -> None:
        served, sound, odd = Served(), JOBS[kind], data.draw(hostile(named(JOBS[kind], "odd")))
        served.put(kind.path(), odd, named(sound, "before"), later=False)
        served.put(kind.path(), odd, named(sound, "behind"), later=True)
        await seen_behind(served, "behind")

    asyncio.run(run())


@given(data=st.data())
@fuzzed
def test_no_pod_ends_the_watch(data: st.DataObject) -> None:
    """A hostile pod of a valid job does not end the watch, and later objects are reported as before."""

    async def run() -> None:
        served, odd = Served(), data.draw(hostile(of("sound", BATCH_JOB, "odd")))
        served.put(BATCH_JOB.path(), named(JOBS[BATCH_JOB], "sound"), later=False)
        served.put(PODS, odd, of("sound", BATCH_JOB, "before"), later=False)
        served.put(PODS, odd, of("sound", BATCH_JOB, "behind"), later=True)
        await seen_behind(served, "behind")

    asyncio.run(run())


@given(data=st.data())
@fuzzed
def test_no_node_ends_the_watch(data: st.DataObject) -> None:
    """A hostile node does not end the watch: its conditions come from foreign programs."""

    async def run() -> None:
        served, odd = Served(), data.draw(hostile(named(node("odd"), "odd")))
        served.put(NODES, odd, named(node("x"), "before"), later=False)
        served.put(NODES, odd, named(node("x"), "behind"), later=True)
        await seen_behind(served, "behind")

    asyncio.run(run())


SAID: dict[str, tuple[str, str, Object, str]] = {
    "event": (
        "nvidia",
        "/api/v1/namespaces/default/events",
        event(metadata={"name": "hot", "uid": "hot", "managedFields": [{"time": "2100-01-01T00:00:00Z"}]}),
        "",
    ),
    "cards": (
        "ascend",
        "/api/v1/namespaces/kube-system/configmaps",
        device_info(card(2, c8C084E00="SeparateNPU"), SwitchInfoCfg={"FaultTimeAndLevelMap": {"[0x08520003,na,L2,na]_1_9": {}}}),
        "DeviceInfoCfg",
    ),
    "switches": (
        "ascend",
        "/api/v1/namespaces/kube-system/configmaps",
        device_info(SwitchInfoCfg={"FaultTimeAndLevelMap": {"[0x1]_1_9": {"fault_time": 1760000000, "fault_level": "Separate"}}}),
        "SwitchInfoCfg",
    ),
    "noded": (
        "ascend",
        "/api/v1/namespaces/mindx-dl/configmaps",
        config_map(
            "mindx-dl-nodeinfo-node-0",
            NodeInfo={"NodeInfo": {"FaultDevList": [{"DeviceType": "CPU", "FaultCode": ["1"], "FaultLevel": "SeparateFault"}]}},
        ),
        "NodeInfo",
    ),
    "public fault": (
        "ascend",
        "/api/v1/namespaces/cluster-system/configmaps",
        config_map("fault", PublicFault=public("220001001")),
        "PublicFault",
    ),
    "kept public fault": (
        "ascend",
        "/api/v1/namespaces/cluster-system/configmaps",
        config_map("fault", PublicFault=kept(public("220001001"))),
        "PublicFault",
    ),
    "separated": (
        "ascend",
        "/api/v1/namespaces/cluster-system/configmaps/clusterd-manual-info-cm",
        config_map("separated", **{"node-0": {"Total": ["Ascend910-0"], "Detail": {"Ascend910-0": [{"FaultCode": "1"}]}}}),
        "node-0",
    ),
}
"""Reports about nodes: the rules that read them, their path, a valid one, and the part of its data that is JSON."""


@pytest.mark.parametrize("name", SAID)
@given(data=st.data())
@fuzzed
def test_nothing_that_is_said_of_a_node_ends_the_watch(name: str, data: st.DataObject) -> None:
    """A hostile report about a node does not end the watch, and the resulting observation can be sent."""
    rules, path, sound, key = SAID[name]
    odd = named(sound, "odd")
    if key:
        odd["metadata"]["name"] = sound["metadata"]["name"]
        odd["data"] = {**sound["data"], key: json.dumps(data.draw(broken(json.loads(sound["data"][key]))))}
    else:
        odd |= data.draw(broken({part: value for part, value in odd.items() if part != "metadata"}))

    async def run() -> None:
        served = Served()
        served.put(NODES, named(node("x"), "node-0"), named(node("x"), "before"), later=False)
        served.put(path, odd, later=False)
        served.put(path, odd, sound, later=True)
        cluster = KubernetesCluster(cast(Any, served), Settings(cluster="kubernetes", rules=rules))
        async with asyncio.timeout(WITHIN), aclosing(cluster.watch()) as news:
            assert isinstance(await anext(news), Snapshot)
            async for one in news:
                assert isinstance(one, WatchEvent)
                assert isinstance(one.object, Node)
                seen = sight(view(a_pod(0), nodes=(one.object,)), cluster.rules)
                assert Sighting.model_validate_json(seen.model_dump_json()) == seen
                if any(report.id.startswith(sound["metadata"]["uid"]) for report in one.object.status.reports):
                    return

    asyncio.run(run())


async def begun_behind(served: Served) -> None:
    """Runs the operator until the pods of the valid job after the hostile one are created."""
    running = asyncio.create_task(Operator(cast(Any, served), Settings(cluster="kubernetes")).run())
    try:
        async with asyncio.timeout(WITHIN):
            while "behind-worker-1" not in served.made:
                served.something_made.clear()
                waiting = asyncio.create_task(served.something_made.wait())
                await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@given(data=st.data())
@fuzzed
def test_no_job_and_no_pod_ends_the_operator(data: st.DataObject) -> None:
    """Objects are processed one after the other, whatever the first one contains."""

    async def run() -> None:
        served = Served()
        odd = data.draw(hostile(named(JOBS[TRAINING_JOB], "odd")))
        served.put(TRAINING_JOB.path(), odd, later=False)
        served.put(TRAINING_JOB.path(), odd, named(JOBS[TRAINING_JOB], "behind"), later=True)
        mine = of("odd", TRAINING_JOB, "odd-worker-0")
        mine["metadata"]["labels"][keys.JOB_ID] = "uid-of-odd"
        hostile_pod = data.draw(hostile(mine))
        hostile_pod["metadata"]["labels"].setdefault(keys.JOB_ID, "")
        served.put(PODS, hostile_pod, later=data.draw(st.booleans()))
        await begun_behind(served)

    asyncio.run(run())
