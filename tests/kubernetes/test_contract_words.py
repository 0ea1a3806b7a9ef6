"""Words of MindCluster's contract on a real API server: reset-config, labels and annotations are those that ClusterD writes, and
what tenants or other components have written there is neither lost nor believed."""

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import reset_config, super_pods
from activities.clusters.kubernetes.contract_words import ContractWords
from activities.clusters.kubernetes.driver import KubernetesCluster
from rekindle.errors import BadInput, ClusterUnavailable, Conflict, Forbidden, NotFound
from rekindle.model.contract import FaultLabel, Status, Words
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.settings import Settings
from simulators.kubernetes.installation import DEPLOY
from tests.fakes.ascend_operator import groups_path, submit_ascend_job
from tests.fakes.controller import annotations_of, labels_of
from tests.fakes.volcano import operator_and_volcano
from tests.kubernetes.test_detection import ensure_namespace, put
from tests.kubernetes.world.ascend_jobs import until_running
from tests.kubernetes.world.control_plane import Namespace

CLEAR = {
    "RankList": [],
    "UpdateTime": 0,
    "RetryTime": 0,
    "FaultFlushing": False,
    "GracefulExit": 0,
    "RestartFaultProcess": False,
}
RANK_1 = {
    "RankId": 1,
    "LogicId": 0,
    "Status": "fault",
    "Policy": "",
    "InitialPolicy": "",
    "ErrorCode": None,
    "ErrorCodeHex": "",
}
FAULT_JOB_INFO = "/api/v1/namespaces/cluster-system/configmaps/fault-job-info"


class OtherWriter(Api):
    """API client before whose first patches of a reset-config another component writes the object."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.comes_first = 0
        self.refuses = ""
        """Part of the path of objects that may not be written, or are unavailable if it ends with `!`."""

    async def patch(self, path: str, body: Object) -> Object:
        if self.refuses and self.refuses.rstrip("!") in path:
            raise ClusterUnavailable("scripted") if self.refuses.endswith("!") else Forbidden("scripted")
        if self.comes_first and "reset-config" in path:
            self.comes_first -= 1
            await super().patch(path, {"data": {"restartType": f"podReschedule{self.comes_first}"}})
        return await super().patch(path, body)


class Described:
    """Job of two pods with one rank each, and what the contract says of it."""

    def __init__(self, namespace: Namespace, api: OtherWriter, job: Object) -> None:
        self.namespace, self.api, self.job = namespace, api, job
        self.cluster = KubernetesCluster(api, Settings(namespaces=(namespace.name,)))

    @property
    def path(self) -> str:
        return self.namespace.path("configmaps", "reset-config-demo")

    async def make(self, content: str | dict[str, Any] | None = None, labels: dict[str, str] | None = None) -> None:
        text = content if isinstance(content, str) else json.dumps(content or CLEAR, separators=(",", ":"))
        metadata = {"name": "reset-config-demo", "labels": {"reset": "true"} if labels is None else labels}
        data = {"reset.json": text, "checkCode": "", "restartType": "podReschedule"}
        await self.api.create(self.namespace.path("configmaps"), {"metadata": metadata, "data": data})

    async def say(self, **words: Any) -> int | None:
        return await self.cluster.contract.ensure_words(self.job["metadata"]["uid"], Words(**words))

    async def data(self) -> dict[str, str]:
        found: dict[str, str] = (await self.api.get(self.path))["data"]
        return found

    async def content(self) -> dict[str, Any]:
        """Returns the content of the reset-config without its time; its check code must be that of the text."""
        data = await self.data()
        assert data["checkCode"] == sha256(data["reset.json"].encode()).hexdigest()
        assert data["reset.json"] == json.dumps(json.loads(data["reset.json"]), separators=(",", ":"))
        return {**json.loads(data["reset.json"]), "UpdateTime": 0}

    @property
    def group_path(self) -> str:
        return groups_path(self.namespace.name, f"demo-{self.job['metadata']['uid']}")

    async def group(self) -> Object:
        return await self.api.get(self.group_path)

    async def in_a_super_pod(self) -> None:
        """Annotates the pods as the Device Plugin does for one super pod."""
        said = {"super_pod_id": 3, "devices": [{"super_device_id": "7"}]}
        for name in await self.labels():
            annotations = {super_pods.DEVICES: json.dumps(said)}
            await self.api.patch(self.namespace.path("pods", name), {"metadata": {"annotations": annotations}})

    async def entries(self) -> dict[str, str]:
        """Returns the entries of all jobs in `fault-job-info`."""
        try:
            return (await self.api.get(FAULT_JOB_INFO)).get("data") or {}
        except NotFound:
            return {}

    async def labels(self) -> dict[str, str | None]:
        pods = (await self.api.list(self.namespace.path("pods"))).items
        return {pod["metadata"]["name"]: labels_of(pod).get("fault-type") for pod in pods}


@pytest.fixture
async def job(namespace: Namespace, kubeconfig: Path) -> AsyncIterator[Described]:
    async with operator_and_volcano(namespace), OtherWriter(kubeconfig) as api:
        annotations, labels = {"recover-strategy": "recover"}, {"fault-scheduling": "force", "rekindle.io/managed": "true"}
        body = await submit_ascend_job(namespace, labels=labels, annotations=annotations)
        await until_running(namespace)
        yield Described(namespace, api, body)


async def test_the_reset_config_is_written_as_cluster_d_writes_it(job: Described) -> None:
    """Content is right at each moment of a recovery, byte for byte but for the time, with its check code."""
    await job.make()
    assert await job.say(flushing=True) == 0
    assert await job.content() == {**CLEAR, "FaultFlushing": True}
    await job.say(faulty=(1,))
    assert await job.content() == {**CLEAR, "RankList": [RANK_1]}
    await job.say(faulty=(1,), in_place=True)
    assert await job.content() == {**CLEAR, "RankList": [RANK_1], "RestartFaultProcess": True}
    assert await job.say(restarts=1) == 1
    assert await job.content() == {**CLEAR, "RetryTime": 1}
    assert await job.say(over=True) == 1
    assert await job.content() == {**CLEAR, "RetryTime": 1}
    assert (await job.data())["restartType"] == "podReschedule"


async def test_the_same_words_are_not_written_twice(job: Described) -> None:
    """Readers compare the time of the last update, so that a repetition would be news."""
    await job.make()
    await job.say(faulty=(1,))
    before = await job.api.get(job.path)
    await job.say(faulty=(1,))
    assert await job.api.get(job.path) == before


async def test_members_of_later_versions_stay(job: Described) -> None:
    """Unknown members are written back as they were."""
    await job.make({**CLEAR, "Later": {"a": 1}, "GracefulExit": 1})
    await job.say(flushing=True)
    assert await job.content() == {**CLEAR, "FaultFlushing": True, "Later": {"a": 1}}


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_write_of_another_component_is_not_lost(job: Described, writes: int) -> None:
    """Volcano writes the object between our read and our write: it is read and written again."""
    await job.make()
    job.api.comes_first = writes
    await job.say(faulty=(1,))
    assert (await job.content())["RankList"] == [RANK_1]
    assert (await job.data())["restartType"] == "podReschedule0"


async def test_an_object_that_others_write_all_the_time_is_tried_again_later(job: Described) -> None:
    """The activity is retried then; nothing was overwritten."""
    await job.make()
    job.api.comes_first = 9
    with pytest.raises(Conflict):
        await job.say(faulty=(1,))
    assert json.loads((await job.data())["reset.json"]) == CLEAR


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("{", None),
        ("[]", None),
        ("[" * 100_000, None),
        ({**CLEAR, "RetryTime": "many"}, None),
        ({**CLEAR, "RankList": "all"}, None),
        ({**CLEAR, "RankList": [{**RANK_1, "Policy": "reset"}]}, None),
        ({**CLEAR, "RankList": [{**RANK_1, "Policy": "restart"}]}, None),
        (CLEAR, {}),
    ],
    ids=["no JSON", "no object", "deep", "no count", "no list", "hot reset", "hot restart", "no label"],
)
async def test_a_reset_config_that_is_not_ours_to_write_is_left_alone(
    job: Described, content: str | dict[str, Any], labels: dict[str, str] | None
) -> None:
    """Reason is logged once, and the other parts are written."""
    await job.make(content, labels)
    before = await job.data()
    for _ in range(2):
        assert await job.say(faulty=(1,), status=Status.RECOVER_FAILED) is None
    assert await job.data() == before
    assert annotations_of(await job.group())["ProcessRecoverStatus"] == "recover-failed"


async def test_a_job_without_a_reset_config_has_the_other_words(job: Described) -> None:
    """ClusterD ends such a job; here it is tolerated."""
    assert await job.say(flushing=True, status=Status.RETRY_SUCCESS) is None
    assert annotations_of(await job.group())["ProcessRecoverStatus"] == "retry-success"
    with pytest.raises(NotFound):
        await job.api.get(job.path)


async def test_labels_of_pods_are_set_once_and_removed_in_the_end(job: Described) -> None:
    """A label that another fault has set stays, and so does the reason of a hot switch."""
    pods = {pod["metadata"]["name"]: pod for pod in (await job.api.list(job.namespace.path("pods"))).items}
    uids = {name: pod["metadata"]["uid"][:HOLDER_LENGTH] for name, pod in pods.items()}  # as a job's state has them
    await job.say(labels={uids["demo-worker-0"]: FaultLabel.RETRY, "another": FaultLabel.SOFTWARE})
    await job.say(labels=dict.fromkeys(uids.values(), FaultLabel.SOFTWARE))
    assert await job.labels() == {"demo-master-0": "software", "demo-worker-0": "retry-fault"}
    await job.api.patch(job.namespace.path("pods", "demo-master-0"), {"metadata": {"labels": {"fault-type": "Other"}}})
    await job.say(over=True)
    assert await job.labels() == {"demo-master-0": "Other", "demo-worker-0": None}


async def test_nothing_stays_on_pause(job: Described) -> None:
    """A restart that was cut leaves process-level recovery switched off. The sweep switches it on, and other values stay."""
    for said, left in (("pause", "on"), ("off", "off")):
        await job.api.patch(job.group_path, {"metadata": {"labels": {"process-recover-enable": said}}})
        await job.say(flushing=True)
        assert labels_of(await job.group())["process-recover-enable"] == said
        await job.say(over=True)
        assert labels_of(await job.group())["process-recover-enable"] == left


@pytest.mark.parametrize("refuses", ["reset-config", "podgroups", "pods/"])
async def test_a_part_that_is_forbidden_keeps_no_other_part_back(job: Described, refuses: str) -> None:
    """Writes of the other kinds succeed without the right to one kind, and so does the call."""
    await job.make()
    pods = (await job.api.list(job.namespace.path("pods"))).items
    job.api.refuses = refuses
    await job.say(
        flushing=True, status=Status.DUMP_FAILED, labels={pods[0]["metadata"]["uid"][:HOLDER_LENGTH]: FaultLabel.SOFTWARE}
    )
    assert ("software" in (await job.labels()).values()) is (refuses != "pods/")
    assert ("ProcessRecoverStatus" in annotations_of(await job.group())) is (refuses != "podgroups")
    assert json.loads((await job.data())["reset.json"])["FaultFlushing"] is (refuses != "reset-config")


async def test_a_part_that_fails_is_repeated_when_the_others_are_written(job: Described) -> None:
    """The error is raised at the end, so that the activity is retried."""
    await job.make()
    job.api.refuses = "reset-config!"
    with pytest.raises(ClusterUnavailable):
        await job.say(flushing=True, status=Status.DUMP_FAILED)
    assert annotations_of(await job.group())["ProcessRecoverStatus"] == "dump-failed"


async def test_a_platform_reads_and_writes_the_pod_group(job: Described) -> None:
    """Annotations are read from the PodGroup, and faults are written onto it and not onto the job."""
    uid, contract = job.job["metadata"]["uid"], job.cluster.contract
    assert await contract.said_by_platform(uid) == {}
    await contract.tell_platform(uid, {"ProcessConfirmFault": "1:1"})
    assert await contract.said_by_platform(uid) == {"ProcessConfirmFault": "1:1"}
    assert "ProcessConfirmFault" not in annotations_of(
        await job.api.get(f"/apis/mindxdl.gitee.com/v1/namespaces/{job.namespace.name}/ascendjobs/demo")
    )


async def test_the_component_gives_exactly_the_rights_that_are_needed(job: Described, kubeconfig: Path, tmp_path: Path) -> None:
    """The account may write the two ConfigMaps, and nothing else that the component does not name."""
    await ensure_namespace(job.api, "cluster-system")
    config = await job.namespace.kubeconfig_of("words", kubeconfig, tmp_path)
    for thing in yaml.safe_load_all((DEPLOY / "components" / "contract-words" / "rbac.yaml").read_text()):
        metadata, where = thing["metadata"], "/apis/rbac.authorization.k8s.io/v1"
        if "namespace" in metadata:
            where = f"{where}/namespaces/{metadata['namespace']}"
        if "subjects" in thing:
            assert [one["name"] for one in thing["subjects"]] == ["rekindle-control"]
            thing["subjects"] = [{"kind": "ServiceAccount", "name": "words", "namespace": job.namespace.name}]
        await put(job.api, f"{where}/{thing['kind'].lower()}s", thing)
    await job.make()
    await job.say(over=True)
    await job.in_a_super_pod()
    uid = job.job["metadata"]["uid"]
    async with Api(config) as api:
        contract = ContractWords(api, job.cluster.contract._operations, job.cluster._to_change)
        async with asyncio.timeout(60):  # the API server applies new bindings after a moment
            while (await job.content())["FaultFlushing"] is False or not await job.entries():
                await contract.ensure_words(uid, Words(flushing=True, leaving=(1,)))
        await contract.ensure_words(uid, Words(over=True))
    assert await job.content() == CLEAR
    assert not await job.entries()


# ---- super pods


def member(rank: int, node: str, super_pod: Any = 3, devices: Any = ("1",)) -> Object:
    said = {"super_pod_id": super_pod, "devices": [{"super_device_id": one} for one in devices]}
    return placed(rank, node, json.dumps(said))


def placed(rank: int, node: str, said: str) -> Object:
    annotations = {"hccl/rankIndex": str(rank), super_pods.DEVICES: said}
    return {"metadata": {"annotations": annotations}, "spec": {"nodeName": node}}


def test_healthy_nodes_of_a_super_pod_are_named_with_the_faulty_devices() -> None:
    """Nodes of other super pods have nothing to release."""
    pods = [member(0, "node-1"), member(1, "node-2", devices=("4194304", "7")), member(2, "node-3", 4), member(3, "node-2")]
    assert json.loads(super_pods.entry(pods, (1,), "job", 1760000000)) == {
        "3": {
            "SdIds": ["4194304", "7"],
            "FaultNodes": {"node-2": {}},
            "NodeNames": ["node-1"],
            "FaultTimes": 1760000000,
            "JobId": "job",
        }
    }


@pytest.mark.parametrize(
    "said", ["{", "[]", "null", "{}", '{"super_pod_id": -1, "devices": []}', '{"super_pod_id": "3", "devices": 1}']
)
def test_pods_without_a_super_pod_need_no_release(said: str) -> None:
    """Malformed annotations, which tenants can write, count as none."""
    assert super_pods.entry([placed(0, "node-1", said), placed(1, "node-2", said)], (1,), "job", 1) == ""


def test_an_entry_that_would_fill_the_config_map_of_all_jobs_is_left_out() -> None:
    """Room is left for the entries of other jobs."""
    pods = [member(rank, f"node-{rank}", devices=[f"{rank:05d}{one:03d}" for one in range(64)]) for rank in range(500)]
    assert super_pods.entry(pods, range(500), "job", 1) == ""
    assert super_pods.entry(pods, range(5), "job", 1)


async def test_the_entry_of_a_job_is_written_and_removed(job: Described) -> None:
    """Entries of other jobs stay. Users create the namespace, and a cluster without it needs no entry."""
    uid = job.job["metadata"]["uid"]
    await job.in_a_super_pod()
    await job.say(leaving=(1,))
    await ensure_namespace(job.api, "cluster-system")
    await job.say(leaving=(1,))
    assert json.loads((await job.entries())[uid])["3"]["SdIds"] == ["7"]
    await job.api.patch(FAULT_JOB_INFO, {"data": {"another": "{}"}})
    await job.say(over=True)
    assert await job.entries() == {"another": "{}"}
    await job.api.patch(FAULT_JOB_INFO, {"data": {"another": None}})


def test_more_ranks_than_a_config_map_takes_are_not_listed() -> None:
    """The object would be refused as a whole. The time says that something has changed."""
    config = {"metadata": {"labels": {"reset": "true"}}, "data": {}}
    content = reset_config.changed(config, Words(faulty=tuple(range(10_000)), in_place=True), 5)
    assert content.data is not None
    found = json.loads(content.data["reset.json"])
    assert (found["RankList"], found["UpdateTime"], found["RestartFaultProcess"]) == ([], 5, True)


def test_the_reason_of_a_reset_config_that_is_left_alone_names_the_field() -> None:
    """A person has to find it: `hotReset=1` is at its end of life."""
    config = {"metadata": {"labels": {"reset": "true"}}, "data": {"reset.json": json.dumps({"RankList": [{"Policy": "reset"}]})}}
    with pytest.raises(BadInput, match=r"data\.reset\.json\.RankList: .*hotReset=1 is not accepted, use 2"):
        reset_config.changed(config, Words(), 1)
