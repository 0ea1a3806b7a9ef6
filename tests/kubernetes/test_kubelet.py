"""Pods of a real API server as processes of this machine: scheduled by the real scheduler, counted by the real controllers."""

from pathlib import Path

from activities.clusters.api_server import Object
from rekindle.model.cluster import Condition, condition_of
from simulators.kubernetes.container import IMAGES, folder_of
from simulators.kubernetes.kubelet import LOST, REFUSE, START_AFTER
from simulators.kubernetes.network import is_ready
from tests.kubernetes.world.control_plane import Namespace

STUBBORN = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")


def log_of(kubeconfig: Path, namespace: Namespace, pod: str) -> str:
    (found,) = (kubeconfig.parent / "pods").glob(f"{namespace.name}_{pod}.*.log")
    return found.read_text()


async def test_a_pod_runs_to_its_end(namespace: Namespace, kubeconfig: Path) -> None:
    """A process finds literals and fields of its pod in its environment. The pod's status has its exit code."""
    references = {
        "NAME": "metadata.name",
        "UID": "metadata.uid",
        "RANK": "metadata.annotations['hccl/rankIndex']",
        "NODE": "spec.nodeName",
    }
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in references.items()]
    pod = await namespace.pod(
        "good", "sh", "-c", "echo $NAME $UID $RANK $NODE $WORD", env=[*env, {"name": "WORD", "value": "hello"}]
    )
    ended = await namespace.until_phase("good", "Succeeded")
    node = ended["spec"]["nodeName"]
    assert log_of(kubeconfig, namespace, "good") == f"good {pod['metadata']['uid']} 3 {node} hello\n"
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_a_pod_waits_for_what_its_environment_names(namespace: Namespace, kubeconfig: Path) -> None:
    """Entries of a ConfigMap and of a Secret are in the environment of a pod as soon as both are there. Code of its image comes
    before other code."""
    code = kubeconfig.parent / IMAGES / folder_of("changed:1")
    code.mkdir(parents=True)
    (code / "workflows.py").write_text("print('changed')")
    sources = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}}]
    script = "echo $WORD $KEY; exec python -P -c 'import workflows'"
    await namespace.pod("waits", "sh", "-c", script, container={"envFrom": sources, "image": "changed:1"})
    waiting = await namespace.until("pods", "waits", lambda pod: bool(pod["status"].get("containerStatuses")))
    assert waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    await namespace.api.create(namespace.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"WORD": "hello"}})
    await namespace.api.create(namespace.path("secrets"), {"metadata": {"name": "keys"}, "stringData": {"KEY": "secret"}})
    await namespace.until_phase("waits", "Succeeded")
    assert log_of(kubeconfig, namespace, "waits") == "hello secret\nchanged\n"


async def test_a_service_leads_to_its_pods_that_are_ready(namespace: Namespace, kubeconfig: Path) -> None:
    """Two pods listen on one port, each on an address of its own. A pod that has not passed its probe gets no connection."""
    ports, address = (
        [{"name": "web", "containerPort": 8080}],
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    )
    serve = "mkdir $HOME/$NAME; cd $HOME/$NAME; echo $NAME > index.html; exec python -m http.server 8080 --bind $IP"
    for name, path in (("good", "/"), ("bad", "/missing")):
        env = [address, {"name": "NAME", "value": name}, {"name": "HOME", "value": str(kubeconfig.parent)}]
        probe = {"httpGet": {"path": path, "port": "web"}, "periodSeconds": 1}
        await namespace.pod(name, "sh", "-c", serve, env=env, container={"ports": ports, "readinessProbe": probe})
        label = {"metadata": {"labels": {"app": "web"}}}
        await namespace.api.patch(namespace.path("pods", name), label)
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]}
    await namespace.api.create(namespace.path("services"), {"metadata": {"name": "web"}, "spec": spec})
    pods = [await namespace.until("pods", name, lambda pod: "podIP" in pod["status"]) for name in ("good", "bad")]
    assert len({pod["status"]["podIP"] for pod in pods}) == 2
    await namespace.until("pods", "good", is_ready)
    ask = "from urllib.request import urlopen; import os; print(urlopen('http://' + os.environ['WEB']).read().decode(), end='')"
    target = {"name": "WEB", "value": f"web.{namespace.name}.svc:80"}
    await namespace.pod("client", "python", "-c", "; ".join([ask, ask, ask, ask]), env=[target])
    await namespace.until_phase("client", "Succeeded")
    assert log_of(kubeconfig, namespace, "client") == "good\n" * 4
    assert not is_ready(await namespace.api.get(namespace.path("pods", "bad")))


async def test_a_pod_that_fails_says_why(namespace: Namespace) -> None:
    """A failed pod has phase, exit code, and the last line of its log as message."""
    await namespace.pod("bad", "sh", "-c", "echo first; echo out of memory >&2; exit 3")
    ended = await namespace.until_phase("bad", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert ended["status"]["message"] == "out of memory"


async def test_a_command_that_is_not_there_fails_its_pod(namespace: Namespace) -> None:
    """The pod fails with the name of the command, and nothing hangs."""
    await namespace.pod("typo", "/no/such/program")
    assert "/no/such/program" in (await namespace.until_phase("typo", "Failed"))["status"]["message"]


async def test_a_pod_ends_within_its_grace_period(namespace: Namespace, kubeconfig: Path) -> None:
    """SIGTERM comes first. A process that ignores it lives until the grace period is over, or until a second deletion shortens
    it."""
    pod = await namespace.pod("stubborn", *STUBBORN)
    await namespace.until_phase("stubborn", "Running")
    path, uid = namespace.path("pods", "stubborn"), pod["metadata"]["uid"]
    await namespace.api.delete(path, uid, 600)
    terminating = await namespace.api.get(path)
    assert terminating["metadata"]["deletionTimestamp"]
    assert terminating["status"]["phase"] == "Running"
    await namespace.api.delete(path, uid, 0)
    await namespace.until_gone(pod)
    polite = await namespace.pod("polite", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    await namespace.until_phase("polite", "Running")
    await namespace.api.delete(namespace.path("pods", "polite"), polite["metadata"]["uid"], 30)
    await namespace.until_gone(polite)


async def test_without_a_free_node_the_scheduler_says_so(namespace: Namespace) -> None:
    """The pod is Unschedulable, with kube-scheduler's own message, and runs when there is room."""
    for number in range(3):
        await namespace.pod(f"full-{number}", "sleep", "1000", accelerators=2)
        await namespace.until_phase(f"full-{number}", "Running")
    await namespace.pod("waits", "sleep", "1000", accelerators=1)
    waiting = await namespace.until("pods", "waits", lambda pod: bool(pod["status"].get("conditions")))
    condition = condition_of([Condition.model_validate(c) for c in waiting["status"]["conditions"]], "PodScheduled")
    assert condition
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert "Insufficient huawei.com/Ascend910" in condition.message
    full = await namespace.api.get(namespace.path("pods", "full-0"))
    await namespace.api.delete(namespace.path("pods", "full-0"), full["metadata"]["uid"], 0)
    assert (await namespace.until_phase("waits", "Running"))["spec"]["nodeName"] == full["spec"]["nodeName"]


async def test_a_job_of_the_real_controller_completes(namespace: Namespace) -> None:
    """An indexed Job gets its pods, one of each index, and is complete when they have succeeded."""
    container = {"name": "main", "image": "none", "command": ["sh", "-c", 'test -n "$JOB_COMPLETION_INDEX"']}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    await namespace.api.create(namespace.path("jobs"), {"metadata": {"name": "indexed"}, "spec": spec})
    done = await namespace.until("jobs", "indexed", lambda job: job.get("status", {}).get("succeeded") == 2)
    assert done["status"]["completedIndexes"] == "0,1"


async def test_a_pod_is_started_again_where_its_policy_says_so(namespace: Namespace) -> None:
    """The same pod runs again under restartPolicy OnFailure, with one restart more, until it succeeds."""
    script = "test -e $MARK && exit 0; touch $MARK; exit 1"
    mark = {"name": "MARK", "value": f"/tmp/rekindle-{namespace.name}-mark"}
    Path(mark["value"]).unlink(missing_ok=True)
    await namespace.pod("again", "sh", "-c", script, env=[mark], restartPolicy="OnFailure")
    ended = await namespace.until_phase("again", "Succeeded")
    assert ended["status"]["containerStatuses"][0]["restartCount"] == 1
    Path(mark["value"]).unlink()


async def test_a_kubelet_refuses_or_dawdles_when_it_is_told_to(namespace: Namespace) -> None:
    """Annotations of a node make its kubelet fail a pod with a reason, or start it later."""
    await _annotate(namespace, "node-0", {REFUSE: "ImagePullBackOff"})
    await _annotate(namespace, "node-1", {START_AFTER: "0.5"})
    try:
        await namespace.pod("refused", "sleep", "1000", node="node-0")
        assert (await namespace.until_phase("refused", "Failed"))["status"]["reason"] == "ImagePullBackOff"
        await namespace.pod("late", "sleep", "1000", node="node-1")
        waiting = await namespace.until("pods", "late", lambda pod: bool(pod["status"].get("containerStatuses")))
        assert waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
        await namespace.until_phase("late", "Running")
    finally:
        await _annotate(namespace, "node-0", {REFUSE: None})
        await _annotate(namespace, "node-1", {START_AFTER: None})


async def test_a_lost_node_is_noticed_by_the_cluster(namespace: Namespace) -> None:
    """A node whose lease expires is marked not ready by the real controller. Its pods' end is reported when it is back."""
    await namespace.pod("there", "sleep", "1000", node="node-2")
    await namespace.until_phase("there", "Running")
    await _annotate(namespace, "node-2", {LOST: "yes"})
    try:
        lost = await namespace.until("nodes", "node-2", lambda node: _ready(node) != "True")
        assert _ready(lost) == "Unknown"
        assert (await namespace.api.get(namespace.path("pods", "there")))["status"]["phase"] == "Running"
    finally:
        await _annotate(namespace, "node-2", {LOST: None})
    await namespace.until("nodes", "node-2", lambda node: _ready(node) == "True")
    assert (await namespace.until_phase("there", "Failed"))["status"]["containerStatuses"][0]["state"]["terminated"][
        "exitCode"
    ] == 137


async def test_a_node_that_is_given_up_too_early_says_that_it_lives(namespace: Namespace) -> None:
    """A node whose lease comes late reports that it is ready again, and its other conditions stay as they are."""
    path = "/api/v1/nodes/node-2"
    given_up = [{"type": "Ready", "status": "Unknown"}, {"type": "SubHealthy", "status": "False", "reason": "kept"}]
    await namespace.api.patch(f"{path}/status", {"status": {"conditions": given_up}})
    node = await namespace.until("nodes", "node-2", lambda node: _ready(node) == "True")
    assert "kept" in {condition.get("reason") for condition in node["status"]["conditions"]}


async def _annotate(namespace: Namespace, node: str, annotations: dict[str, str | None]) -> None:
    await namespace.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}})


def _ready(node: dict[str, object]) -> str:
    status = node["status"]
    assert isinstance(status, dict)
    condition = condition_of([Condition.model_validate(c) for c in status["conditions"]], "Ready")
    return condition.status if condition else ""


async def test_a_pod_that_was_given_up_with_its_node_is_ready_again(namespace: Namespace) -> None:
    """A pod that was marked not ready with its node, and still runs, becomes ready again. A disruption budget then counts it."""
    await namespace.pod("given-up", "sleep", "1000")
    running = await namespace.until_phase("given-up", "Running")
    conditions = [{**one, "status": "False"} if one["type"] == "Ready" else one for one in running["status"]["conditions"]]
    path = namespace.path("pods", "given-up/status")
    await namespace.api.patch(path, {"status": {"conditions": conditions}})

    def is_ready(pod: Object) -> bool:
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])

    await namespace.until("pods", "given-up", is_ready)
