"""The local cluster's own API beyond the port: submission, scheduling, nodes, logs, refusals."""

import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from rekindle.cli.logs import logs
from rekindle.cluster_client import ClusterClient
from rekindle.errors import BadInput, ClusterUnavailable, Conflict, Invalid, NotFound
from rekindle.model import keys
from rekindle.model.cluster import JobPhase, ObjectMeta, Pod, PodPhase, PodSpec, condition_of
from rekindle.policy.detection import isolation
from tests.support.cluster import FOREVER, View, job_object, phase, until, until_gone, until_running, until_said


def scheduling(view: View, name: str) -> str:
    """Returns the scheduler's message about a pod."""
    condition = condition_of(view.pods[name].status.conditions, "PodScheduled") if name in view.pods else None
    return condition.message if condition else ""


async def output(client: ClusterClient, name: str, *, follow: bool = False, tail: int | None = None) -> str:
    return "".join([piece async for piece in client.logs(name, follow=follow, tail=tail)])


async def test_a_pod_finds_its_place_in_its_environment(client: ClusterClient) -> None:
    """Each pod receives the contract's variables, then those of its template; the job's directory has its folders."""
    told = '"$REKINDLE_JOB_DIR/logs/told"'  # the manager has spoken: it is stopped when the workers succeed
    speaks = ("sh", "-c", f"env; touch {told}; exec sleep 1000")
    waits = ("sh", "-c", f"until test -e {told}; do sleep 0.05; done; exec env")
    job = await client.submit(job_object(command=waits, pods=2, env={"MINE": "yes"}, manager=speaks))
    await until(client, lambda view: view.jobs["demo"].status.phase is JobPhase.SUCCEEDED)
    worker = dict(line.split("=", 1) for line in (await output(client, "demo-worker-1", follow=True)).splitlines())
    manager = dict(line.split("=", 1) for line in (await output(client, "demo-manager-0", follow=True)).splitlines())
    pod = await client.pod("demo-worker-1")
    assert worker["MINE"] == "yes"
    assert worker[keys.ENV_JOB_ID] == job.metadata.uid
    assert worker[keys.ENV_GATEWAY_HOST] == worker[keys.ENV_POD_IP] == worker[keys.ENV_MASTER_ADDR] == "127.0.0.1"
    assert (worker[keys.ENV_GATEWAY_PORT], worker[keys.ENV_GENERATION]) == ("8899", "0")
    assert (worker[keys.ENV_POD_ROLE], worker[keys.ENV_POD_RANK]) == ("worker", "1")
    assert (worker[keys.ENV_POD_NAME], worker[keys.ENV_POD_UID]) == ("demo-worker-1", pod.metadata.uid)
    assert worker[keys.ENV_NODE] == pod.spec.node_name
    assert worker[keys.ENV_MASTER_PORT] == manager[keys.ENV_MASTER_PORT] == str(job.status.master_port)
    assert manager[keys.ENV_POD_ROLE] == "manager"
    assert keys.ENV_POD_RANK not in manager
    folders = {path.name for path in Path(worker[keys.ENV_JOB_DIR]).iterdir()}
    assert folders == {"checkpoints", "steps", "final", "logs"}


async def test_a_pod_gets_the_lowest_devices_of_its_node_that_are_free(client: ClusterClient) -> None:
    """A device belongs to one pod at a time; a pod that ended returns its devices."""
    await client.submit(job_object("large", accelerators=1, pods=6))
    pods = await until_running(client, *(f"large-worker-{rank}" for rank in range(6)))
    given = {(pod.spec.node_name, pod.status.devices) for pod in pods}
    assert given == {(f"node-{node}", (device,)) for node in range(3) for device in "01"}
    (first,) = [pod for pod in pods if (pod.spec.node_name, pod.status.devices) == ("node-1", ("0",))]
    await client.delete_pod(first.metadata.name, first.metadata.uid, 0)
    await client.submit(job_object("small"))
    (pod,) = await until_running(client, "small-worker-0")
    assert (pod.spec.node_name, pod.status.devices) == ("node-1", ("0",))


async def test_a_job_succeeds_with_its_workers(client: ClusterClient) -> None:
    """A job succeeds when a pod of every rank has succeeded. Its manager is then stopped, and all objects stay."""
    await client.submit(job_object(command=("true",), pods=2, manager=FOREVER))
    done = await until(client, lambda view: all(pod.status.phase is PodPhase.SUCCEEDED for pod in view.pods.values()))
    assert set(done.pods) == {"demo-worker-0", "demo-worker-1", "demo-manager-0"}
    assert (await client.job("demo")).status.phase is JobPhase.SUCCEEDED


async def test_a_failed_pod_tells_its_exit_code_and_last_words(client: ClusterClient) -> None:
    """A pod that fails keeps exit code, reason and the last line of its log. It is not restarted, and the job is Failed."""
    await client.submit(job_object(command=("sh", "-c", "echo first; echo 'out of memory'; echo; exit 7")))
    view = await until(client, lambda view: view.jobs["demo"].status.phase is JobPhase.FAILED)
    status = view.pods["demo-worker-0"].status
    assert (status.phase, status.exit_code, status.reason, status.message) == (PodPhase.FAILED, 7, "Error", "out of memory")


async def test_a_command_that_is_not_there_fails_the_pod(client: ClusterClient) -> None:
    """A pod whose command cannot be started is Failed, and its message names the command."""
    await client.submit(job_object(command=("no-such-command",)))
    view = await until(client, lambda view: phase(view, "demo-worker-0") is PodPhase.FAILED)
    assert view.pods["demo-worker-0"].status.reason == "StartError"
    assert "no-such-command" in view.pods["demo-worker-0"].status.message


async def test_a_pod_that_fits_nowhere_waits_for_room(client: ClusterClient) -> None:
    """An unschedulable pod has the scheduler's message about each node, and is scheduled as soon as something changes."""
    await client.degrade("node-1", "slow", "half speed")
    await client.submit(job_object(accelerators=3, labels={keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}))
    await client.take_down("node-2")
    view = await until(client, lambda view: "1 node(s) were not ready" in scheduling(view, "demo-worker-0"))
    words = "0/3 nodes are available: 1 Insufficient accelerators, 1 node(s) were not ready, 1 node(s) were sub-healthy."
    assert scheduling(view, "demo-worker-0") == words
    assert phase(view, "demo-worker-0") is PodPhase.PENDING
    await client.set_capacity("node-0", 3)
    (pod,) = await until_running(client, "demo-worker-0")
    assert pod.spec.node_name == "node-0"


@pytest.mark.parametrize("label", [None, "ignore"])
async def test_a_sub_healthy_node_is_the_last_resort_under_ignore(client: ClusterClient, label: str | None) -> None:
    """A sub-healthy node is still used where sub-health is ignored, after the healthy nodes."""
    await client.degrade("node-0", "slow", "")
    labels = {} if label is None else {keys.SUB_HEALTHY_STRATEGY: label}
    await client.submit(job_object(pods=3, accelerators=2, labels=labels))
    pods = await until_running(client, *(f"demo-worker-{rank}" for rank in range(3)))
    assert [pod.spec.node_name for pod in pods] == ["node-1", "node-2", "node-0"]


async def test_no_pod_goes_to_an_isolated_node_until_it_is_released(client: ClusterClient) -> None:
    """The scheduler's message names the isolated node."""
    for node in ("node-0", "node-1"):
        await client.annotate_node(node, isolation.isolation({}, "by a test"))
    await client.submit(job_object("demo", accelerators=2, pods=2))
    (first,) = await until_running(client, "demo-worker-0")
    assert first.spec.node_name == "node-2"
    view = await until(client, lambda view: bool(scheduling(view, "demo-worker-1")))
    assert "2 node(s) were isolated by a stress test" in scheduling(view, "demo-worker-1")
    assert isolation.refusal("node-2", (await client.node("node-2")).metadata.annotations) == "node node-2 is not isolated"
    await client.annotate_node("node-1", isolation.release((await client.node("node-1")).metadata.annotations))
    (second,) = await until_running(client, "demo-worker-1")
    assert second.spec.node_name == "node-1"


async def test_no_pod_goes_to_a_cordoned_node(client: ClusterClient) -> None:
    """The scheduler's message names the cordoned node, and the pod is scheduled there when the cordon is over."""
    await client.cordon("node-0", cordoned=True)
    await client.submit(job_object("demo", accelerators=2, pods=3))
    view = await until(client, lambda view: bool(scheduling(view, "demo-worker-2")))
    assert "1 node(s) were unschedulable" in scheduling(view, "demo-worker-2")
    await client.cordon("node-0", cordoned=False)
    (late,) = await until_running(client, "demo-worker-2")
    assert late.spec.node_name == "node-0"


async def test_a_manager_does_not_sit_beside_rank_0(client: ClusterClient) -> None:
    """Workers begin with the first node and the manager with the last."""
    await client.submit(job_object(manager=FOREVER))
    worker, manager = await until_running(client, "demo-worker-0", "demo-manager-0")
    assert (worker.spec.node_name, manager.spec.node_name) == ("node-0", "node-2")


async def test_a_lost_node_takes_its_pods_with_it(client: ClusterClient) -> None:
    """The pods of a node that is no longer ready fail with the reason NodeLost; those of other nodes run on."""
    await client.submit(job_object(pods=2))
    lost, other = await until_running(client, "demo-worker-0", "demo-worker-1")
    await client.take_down(lost.spec.node_name, "power failure")
    view = await until(client, lambda view: phase(view, "demo-worker-0") is PodPhase.FAILED)
    assert view.pods["demo-worker-0"].status.reason == "NodeLost"
    assert view.pods["demo-worker-1"].status == other.status


async def test_a_transition_time_changes_with_the_status_only(client: ClusterClient) -> None:
    """A repeated sub-health is the same one; a node that healed and became sub-healthy again has another."""
    first, again = [await client.degrade("node-0", "slow", "") for _ in range(2)]
    await client.heal("node-0")
    later = await client.degrade("node-0", "slow", "")
    times = [condition_of(node.status.conditions, "SubHealthy") for node in (first, again, later)]
    assert times[0] == times[1]
    assert times[0] != times[2]


async def test_deleting_a_job_ends_its_pods_first(client: ClusterClient) -> None:
    """A deleted job is marked, its pods end, then it is removed; meanwhile it accepts no new pods."""
    job = await client.submit(job_object(command=("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")))
    (pod,) = await until_running(client, "demo-worker-0")
    await until_said(client, "demo-worker-0", "up")
    assert (await client.delete_job("demo", 600)).metadata.deletion_timestamp
    late = Pod(metadata=ObjectMeta(name="late", owner_uid=job.metadata.uid), spec=PodSpec(command=FOREVER))
    with pytest.raises(Invalid, match="is being deleted"):
        await client.create_pod(late)
    await client.delete_job("demo", 0)
    await until_gone(client, pod)
    await until(client, lambda view: not view.jobs)


async def test_logs_can_be_followed_to_the_end(client: ClusterClient, tmp_path: Path) -> None:
    """Following a log begins with what is there and ends with the pod; a tail is its last lines."""
    gate = tmp_path / "gate"
    script = f"echo one; echo two; while [ ! -e {gate} ]; do sleep 0.02; done; echo three"
    await client.submit(job_object(command=("sh", "-c", script)))
    await until_running(client, "demo-worker-0")
    read = ""
    async for piece in client.logs("demo-worker-0", follow=True):
        read += piece
        if read.endswith("two\n"):
            gate.touch()
    assert read == "one\ntwo\nthree\n"
    assert await output(client, "demo-worker-0", tail=2) == "two\nthree\n"


async def test_a_log_is_followed_while_the_pod_says_nothing(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may be silent for long, such as one that loads. Its log stays open; only a watch receives signs of life."""
    await client.submit(job_object(command=("sh", "-c", "echo one; sleep 0.5; echo two")))
    await until_running(client, "demo-worker-0")
    monkeypatch.setattr("rekindle.cluster_client.SILENCE_LIMIT", 0.05)
    assert await output(client, "demo-worker-0", follow=True) == "one\ntwo\n"


async def test_a_long_log_is_printed_as_it_was_written(
    client: ClusterClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long log arrives in pieces. No line and no letter is broken where a piece ends, and the last line ends with a newline."""
    monkeypatch.setenv("REKINDLE_CLUSTER_SOCKET", str(client.socket))
    words = "x" + "grüße " * 60_000
    await client.submit(job_object(command=(sys.executable, "-c", "print('x' + 'grüße ' * 60_000, end='')")))
    await until(client, lambda view: phase(view, "demo-worker-0") is PodPhase.SUCCEEDED)
    await logs("demo", pod="demo-worker-0")
    assert capsys.readouterr().out.endswith(f"\n{words}\n")


async def test_a_job_of_which_no_log_is_left_says_so(
    client: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose logs are gone is reported as such. Its directory exists, and silence would read as a job that wrote nothing."""
    monkeypatch.setenv("REKINDLE_CLUSTER_SOCKET", str(client.socket))
    monkeypatch.setenv("REKINDLE_STATE_DIR", str(tmp_path))
    (tmp_path / "jobs" / "gone-0a1b2c3d" / "logs").mkdir(parents=True)
    with pytest.raises(NotFound, match=r"no log of gone is left in .*gone-0a1b2c3d/logs"):
        await logs("gone")


async def test_names_are_taken_once(client: ClusterClient) -> None:
    """A second job or pod of a name is a Conflict that names the existing one."""
    await client.submit(job_object())
    with pytest.raises(Conflict, match="job demo is there already"):
        await client.submit(job_object())
    (pod,) = await until_running(client, "demo-worker-0")
    with pytest.raises(Conflict, match=pod.metadata.uid):
        await client.create_pod(pod)
    with pytest.raises(Conflict, match="not stale"):
        await client.delete_pod("demo-worker-0", "stale", 0)


async def test_a_job_that_means_nothing_is_refused(client: ClusterClient) -> None:
    """A label with an unknown value is refused at submission: the watcher could not register the job."""
    with pytest.raises(Invalid, match=r"hotswitch.*accepted: ignore"):
        await client.submit(job_object(labels={keys.SUB_HEALTHY_STRATEGY: "hotswitch"}))
    assert await client.jobs() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "words"),
    [
        (
            "POST",
            "/jobs",
            '{"spec": {"pods": 0, "podz": 1}}',
            422,
            ["metadata: missing", "spec.podz: unknown field", "ranksPerPod"],
        ),
        ("POST", "/jobs", "{", 422, ["invalid JSON"]),
        ("GET", "/jobs/none", "", 404, ["no job", "none"]),
        ("DELETE", "/pods/none?uid=x&grace=soon", "", 422, ["grace: 'soon'", "whole numbers"]),
        ("PATCH", "/nodes/none", "{}", 404, ["node-0, node-1, node-2"]),
        (
            "PATCH",
            "/nodes/node-0",
            '{"conditions": [{"type": "Ready", "status": "Maybe"}]}',
            422,
            ["conditions.0.status", "'True'"],
        ),
        ("GET", "/nowhere", "", 404, ["/nowhere"]),
        ("PUT", "/jobs", "", 405, ["PUT /jobs"]),
    ],
)
async def test_a_refusal_is_a_status_that_names_the_field(
    client: ClusterClient, method: str, path: str, body: str, code: int, words: list[str]
) -> None:
    """Every refusal is a JSON object with code, reason and a message that names what is wrong and what is accepted."""
    connector = aiohttp.UnixConnector(path=str(client.socket))
    async with (
        aiohttp.ClientSession("http://cluster", connector=connector) as session,
        session.request(method, path, data=body) as answer,
    ):
        status = json.loads(await answer.text())
    assert (answer.status, status["code"]) == (code, code)
    assert status["reason"]
    for word in words:
        assert word in status["message"]


async def test_nobody_answers_where_no_cluster_is(tmp_path: Path) -> None:
    """A request or a watch without a cluster is ClusterUnavailable, with the socket's path."""
    async with ClusterClient(Path("/tmp/no-cluster-is-here.sock")) as client:
        with pytest.raises(ClusterUnavailable, match="no-cluster-is-here"):
            await client.jobs()
        with pytest.raises(ClusterUnavailable, match="no-cluster-is-here"):
            await anext(client.watch())


def test_a_socket_path_that_is_too_long_is_refused() -> None:
    """Linux takes 107 bytes: a longer path is refused with its length and the setting that helps."""
    with pytest.raises(BadInput, match=r"120 bytes.*107.*--state-dir"):
        ClusterClient(Path("/" + "x" * 119))


async def test_an_unknown_pod_is_not_found(client: ClusterClient) -> None:
    """Logs and metadata of a pod that is not there are NotFound."""
    with pytest.raises(NotFound):
        await client.patch_pod("none", "uid", {}, {})
    with pytest.raises(NotFound):
        await output(client, "none")


async def test_a_failed_manager_starts_again_while_its_ranks_live(client: ClusterClient) -> None:
    """A failed manager is replaced by another one under the same name; the workers are left alone."""
    await client.submit(job_object(manager=FOREVER))
    worker, manager = await until_running(client, "demo-worker-0", "demo-manager-0")
    assert manager.status.pid is not None
    os.kill(manager.status.pid, signal.SIGKILL)
    await until_gone(client, manager)
    again_worker, again = await until_running(client, "demo-worker-0", "demo-manager-0")
    assert (again_worker.metadata.uid, again.metadata.uid != manager.metadata.uid) == (worker.metadata.uid, True)


async def test_a_deleted_manager_comes_back_while_its_ranks_live(client: ClusterClient) -> None:
    """A deleted manager is recreated in the generation of its workers, which are left alone. Without a manager nothing is
    recovered."""
    await client.submit(job_object(manager=FOREVER))
    worker, manager = await until_running(client, "demo-worker-0", "demo-manager-0")
    await client.delete_pod("demo-manager-0", manager.metadata.uid, 0)
    await until_gone(client, manager)
    again_worker, again = await until_running(client, "demo-worker-0", "demo-manager-0")
    assert again_worker.metadata.uid == worker.metadata.uid
    assert again.metadata.labels[keys.GENERATION] == worker.metadata.labels[keys.GENERATION]


async def test_a_pod_whose_label_means_nothing_keeps_nobody_waiting(client: ClusterClient) -> None:
    """An event reports the label, and jobs after it are still considered."""
    await client.submit(job_object("first"))
    (pod,) = await until_running(client, "first-worker-0")
    await client.patch_pod(pod.metadata.name, pod.metadata.uid, {keys.REPLICA_TYPE: "chief"}, {})
    await client.submit(job_object("second"))
    await until(client, lambda view: "second" in view.jobs and view.jobs["second"].status.phase is JobPhase.RUNNING)
    assert "NotServed" in {event.reason for event in await client.events("first")}


@pytest.mark.parametrize("name", ["", ".", "..", "demo?x", "demo#x", "demo/pods", "../jobs/demo", "de%6do", "日本"])
async def test_a_name_stays_a_name_whatever_is_in_it(client: ClusterClient, name: str) -> None:
    """A name that looks like a path deletes no job, and is answered with a message."""
    await client.submit(job_object())
    with pytest.raises(NotFound, match=r"^no job (is named|has the UID or the name) "):
        await client.delete_job(name)
    with pytest.raises(NotFound, match=r"^no node is named "):
        await client.degrade(name, "code", "words")
    assert [job.metadata.name for job in await client.jobs()] == ["demo"]


async def test_nodes_without_networks_have_no_links(client: ClusterClient) -> None:
    """The error for a link of such a cluster says how to have networks."""
    assert (await client.node("node-0")).status.links == ()
    with pytest.raises(Invalid, match=r"links\.0\.name: .* \(accepted: none, .* started with --links\)"):
        await client.set_link("node-0", "eth1", up=False)
