"""The manifests of `deploy`: what a real API server says of them, and what must hold whoever changes them."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from temporalio.envconfig import ClientConfig
from temporalio.service import TLSConfig

import rekindle
import workers.control
import workers.gateway.server
from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from rekindle.model.manifest import parse
from rekindle.model.rule_file import rules_of
from rekindle.settings import Settings
from workers.local_kubernetes.binaries import MODULE, kubectl
from workers.rivals import NAMESPACE, PART_OF, SERVICE

pytestmark = pytest.mark.timeout(600)  # the first one of a machine builds kubectl

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kubernetes.md"
OVERLAYS = sorted(path.parent.name for path in (ROOT / "deploy" / "overlays").glob("*/kustomization.yaml"))
WRITTEN_BY_HAND = {
    "mtls/tls.crt": "certificate",
    "mtls/tls.key": "key",
    "mtls/ca.crt": "authority",
    "api-key/temporal.env": "TEMPORAL_API_KEY=a-key",
}
ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
FLOW = ("PriorityLevelConfiguration", "FlowSchema")
PROCESSES = ("control", "gateway", "watcher", "operator")
OURS = {PART_OF: "rekindle"}

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


# ---- what the manifests say


@pytest.fixture(scope="module")
def program() -> str:
    return str(kubectl(print))


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `deploy`, with the files that docs/kubernetes.md tells to write."""
    deploy = tmp_path_factory.mktemp("manifests") / "deploy"
    shutil.copytree(ROOT / "deploy", deploy)
    for name, text in WRITTEN_BY_HAND.items():
        (deploy / "overlays" / name).write_text(text)
    return deploy


@pytest.fixture(scope="module")
def manifests(program: str, deploy: Path) -> dict[str, list[Object]]:
    """The objects of each overlay."""
    return {overlay: rendered(program, deploy / "overlays" / overlay) for overlay in OVERLAYS}


def rendered(program: str, overlay: Path) -> list[Object]:
    done = subprocess.run([program, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def workloads(objects: list[Object]) -> list[Object]:
    found = of_kind(objects, "Deployment", "StatefulSet")
    assert {one["metadata"]["name"] for one in found} == {f"rekindle-{name}" for name in PROCESSES}
    return found


def template(one: Object) -> Object:
    found: Object = one["spec"]["template"]
    return found


def container(one: Object) -> Object:
    found: list[Object] = template(one)["spec"]["containers"]
    return found[0]


def chooses(selector: dict[str, str], one: Object) -> bool:
    labels: dict[str, str] = template(one)["metadata"]["labels"]
    return selector.items() <= labels.items()


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def environment(objects: list[Object], one: Object) -> dict[str, str]:
    """What a kubelet would give to the container, less what its image brings."""
    found: dict[str, str] = {}
    for source in container(one)["envFrom"]:
        if reference := source.get("configMapRef"):
            found |= named(objects, "ConfigMap", reference["name"])["data"]
        else:
            secret = named(objects, "Secret", source["secretRef"]["name"])
            found |= {key: b64decode(value).decode() for key, value in secret["data"].items()}
    fields = {"metadata.name": f"{one['metadata']['name']}-0", "status.podIP": "10.0.0.7"}
    for variable in container(one).get("env", []):
        found[variable["name"]] = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return found


def settings(objects: list[Object], one: Object, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the process of a container reads."""
    for name in [name for name in os.environ if name.startswith("REKINDLE_")]:
        monkeypatch.delenv(name)
    for name, value in environment(objects, one).items():
        monkeypatch.setenv(name, value)
    return Settings()


@every_overlay
def test_no_container_is_root_or_writes_to_its_image(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Another user than root, no way to become it, no capability, the default system calls; only volumes can be written to."""
    for one in workloads(manifests[overlay]):
        pod, main = template(one)["spec"]["securityContext"], container(one)["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] >= 10_000
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert main == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert "/tmp" in {mount["mountPath"] for mount in container(one)["volumeMounts"]}


@every_overlay
def test_every_process_is_probed(overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Started, alive and ready are asked at ports of the container; a gateway is ready when its own gRPC service says so."""
    for one in workloads(manifests[overlay]):
        main = container(one)
        ports = {port["name"]: port["containerPort"] for port in main["ports"]}
        assert settings(manifests[overlay], one, monkeypatch).health_port == ports["health"]
        assert main["startupProbe"]["httpGet"] == main["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
        if one["kind"] == "StatefulSet":
            assert main["readinessProbe"]["grpc"] == {"port": ports["grpc"]}
        else:
            assert main["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@every_overlay
def test_every_process_gets_what_it_needs_and_no_more(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Memory is limited, CPU is not: a throttled process loses seconds while training is paused."""
    for one in workloads(manifests[overlay]):
        resources = container(one)["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}
        assert set(resources["limits"]) == {"memory"}


@every_overlay
def test_every_setting_is_known(overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody reads is a mistake in writing; what is written is read without error."""
    known = {f"REKINDLE_{name.upper()}" for name in Settings.model_fields}
    for one in workloads(manifests[overlay]):
        written = {name for name in environment(manifests[overlay], one) if name.startswith("REKINDLE_")}
        assert {name.split("__")[0] for name in written} <= known
        assert settings(manifests[overlay], one, monkeypatch).cluster == "kubernetes"


OWN_RULES = """
apiVersion: rekindle.io/v1
kind: Rules
spec:
  use: [nvidia]
  rules:
    - {name: bad-cable, condition: {type: RdmaLinkFlapping}, then: network-fault, settle: 30, clear: 300}
"""


def test_rules_of_one_s_own_reach_every_process(
    program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a component; the file is what `rekindle check` accepts, where the setting says, and a change replaces the pods."""
    overlay, components = deploy / "own-rules", [f"../components/{name}" for name in ("rules-nvidia", "rules-own")]
    own = {"name": "rekindle-rules", "namespace": NAMESPACE, "files": ["rules.yaml"]}
    overlay.mkdir()
    (overlay / "rules.yaml").write_text(OWN_RULES)
    written = {"resources": ["../overlays/standalone"], "components": components, "configMapGenerator": [own]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(written))
    objects = rendered(program, overlay)
    for one in workloads(objects):
        (volume,) = (volume for volume in template(one)["spec"]["volumes"] if volume["name"] == "rules")
        (mount,) = (mount for mount in container(one)["volumeMounts"] if mount["name"] == "rules")
        name = volume["configMap"]["name"]
        data = named(objects, "ConfigMap", name)["data"]
        path = Path(settings(objects, one, monkeypatch).rules)
        assert (path.parent, [path.name]) == (Path(mount["mountPath"]), list(data))
        assert name != "rekindle-rules", "another file has another name"
        (tmp_path / path.name).write_text(data[path.name])
        assert {"bad-cable", "nvidia/gpu-broken", "plain/cordoned"} <= {
            one.name for one in rules_of(str(tmp_path / path.name)).rules
        }
    assert [one["metadata"]["name"] for one in of_kind(objects, "Role") if one["metadata"]["namespace"] == "default"]


@every_overlay
def test_no_service_becomes_a_setting(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Kubernetes would tell of a Service `rekindle-gateway` by REKINDLE_GATEWAY_PORT=tcp://..., if it were not told not to."""
    assert all(template(one)["spec"]["enableServiceLinks"] is False for one in workloads(manifests[overlay]))


@every_overlay
def test_every_command_names_a_module(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Each process is one of `workers`, of this version's image."""
    for one in workloads(manifests[overlay]):
        *python, module = container(one)["command"]
        assert python == ["python", "-P", "-m"]
        assert importlib.util.find_spec(module)
        assert container(one)["image"] == f"rekindle-control-plane:{rekindle.__version__}"


@every_overlay
def test_a_process_may_end_by_itself(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """The grace period of a pod is longer than what its process needs for calls in flight."""
    needed = max(workers.control.GRACE, timedelta(seconds=2 * workers.gateway.server.GRACE + 1))
    for one in workloads(manifests[overlay]):
        assert timedelta(seconds=template(one)["spec"]["terminationGracePeriodSeconds"]) > needed


def test_gateways_keep_their_names(manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway polls the queue of its pod's name, and listens on its pod's address."""
    objects = manifests["standalone"]
    found = settings(objects, named(objects, "StatefulSet", "rekindle-gateway"), monkeypatch)
    assert (found.gateway_instance, found.gateway_host, found.gateway_port) == ("rekindle-gateway-0", "10.0.0.7", 8899)


@pytest.mark.parametrize("overlay", ["standalone", "take-over"])
def test_training_sides_find_us_where_clusterd_was(
    overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name, namespace and port are the contract's; behind them are the gateways, and jobs are told the same address."""
    objects = manifests[overlay]
    (service,) = of_kind(objects, "Service")
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == (SERVICE, NAMESPACE)
    (port,) = service["spec"]["ports"]
    assert port["port"] == 8899
    behind = [one for one in workloads(objects) if chooses(service["spec"]["selector"], one)]
    assert [one["metadata"]["name"] for one in behind] == ["rekindle-gateway"]
    assert {"name": port["targetPort"], "containerPort": 8899} in container(behind[0])["ports"]
    for one in workloads(objects):
        assert settings(objects, one, monkeypatch).gateway_address == f"{SERVICE}.{NAMESPACE}.svc:8899"


@every_overlay
def test_everything_is_labelled(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """All objects and pods are part of rekindle: that is how our Service is told from ClusterD's, and how all is removed."""
    for one in manifests[overlay]:
        assert one["metadata"]["labels"].items() >= OURS.items(), one["metadata"]["name"]
    for one in workloads(manifests[overlay]):
        assert chooses(OURS, one)


@every_overlay
def test_policies_and_budgets_choose_our_pods_only(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Others live in the namespace; who is not named is not admitted, and each of ours has a policy."""
    objects = manifests[overlay]
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "PodDisruptionBudget")}
    selectors = [spec["podSelector"] for spec in policies.values()] + [spec["selector"] for spec in budgets.values()]
    assert all(selector["matchLabels"].items() >= OURS.items() for selector in selectors)
    assert all(chooses(policies["rekindle"]["podSelector"]["matchLabels"], one) for one in workloads(objects))
    open_ports = {name: [port["port"] for rule in spec["ingress"] for port in rule["ports"]] for name, spec in policies.items()}
    assert open_ports == {"rekindle": [8080], "rekindle-gateway": [8899]}
    several = {one["metadata"]["name"]: one for one in workloads(objects) if one["spec"]["replicas"] > 1}
    assert {"rekindle-control", "rekindle-gateway"} == set(several) == set(budgets)
    assert all(chooses(budgets[name]["selector"]["matchLabels"], one) for name, one in several.items())


TEMPORAL_PORTS = {7233, 7234, 7235, 7239, 8233}
"""Of its services and its page."""


@every_overlay
def test_no_overlay_opens_temporal(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Whoever reaches it has pods deleted by our account: none is installed here that others than we could call."""
    objects = manifests[overlay]
    served = {port["port"] for one in of_kind(objects, "Service") for port in one["spec"]["ports"]}
    listened = {port["containerPort"] for one in workloads(objects) for port in container(one)["ports"]}
    admitted = {
        port["port"] for one in of_kind(objects, "NetworkPolicy") for rule in one["spec"]["ingress"] for port in rule["ports"]
    }
    assert not TEMPORAL_PORTS & (served | listened | admitted)


def test_the_policy_of_the_page_closes_temporal(cluster: "Kubectl") -> None:
    """From other namespaces only our own pods come in, and only to its one port; the API server takes the object."""
    policy = yaml.safe_load(on_the_page("NetworkPolicy"))
    own, ours = policy["spec"]["ingress"]
    assert policy["spec"]["podSelector"] == {}
    assert own == {"from": [{"podSelector": {}}]}
    (peer,) = ours["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    assert peer["podSelector"]["matchLabels"] == OURS
    assert ours["ports"] == [{"port": 7233, "protocol": "TCP"}]
    policy["metadata"]["namespace"] = NAMESPACE
    cluster("create", "--dry-run=server", "-f", "-", objects=[policy])


@pytest.mark.parametrize("overlay", ["observe", "take-over"])
def test_beside_mindcluster_the_namespace_stays_as_it_is(
    overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own components live there and need more than `restricted` gives. Who observes leaves the Service alone as well."""
    objects = manifests[overlay]
    assert not of_kind(objects, "Namespace")
    assert len(of_kind(objects, "Service")) == (overlay == "take-over")
    for one in workloads(objects):
        assert settings(objects, one, monkeypatch).observe == (overlay == "observe")


def test_temporal_is_reached_as_the_overlay_says(manifests: dict[str, list[Object]], tmp_path: Path) -> None:
    """By address and namespace only, by a key, or by certificates from mounted files; the SDK itself reads the environment."""

    def config(overlay: str) -> dict[str, object]:
        objects = manifests[overlay]
        one = named(objects, "Deployment", "rekindle-control")
        mounts = {mount["name"]: mount["mountPath"] for mount in container(one)["volumeMounts"]}
        found = environment(objects, one)
        for volume in [volume for volume in template(one)["spec"]["volumes"] if "secret" in volume]:
            secret = named(objects, "Secret", volume["secret"]["secretName"])
            for name, value in secret["data"].items():
                (tmp_path / name).write_bytes(b64decode(value))
            found = {name: value.replace(mounts[volume["name"]], str(tmp_path)) for name, value in found.items()}
        return {**ClientConfig.load_client_connect_config(override_env_vars=found, disable_file=True)}

    assert config("standalone") == {"target_host": "temporal-frontend.temporal.svc:7233", "namespace": "default"}
    there = {"target_host": "temporal.example.com:7233", "namespace": "rekindle"}
    assert config("api-key") == {**there, "api_key": "a-key", "tls": True}
    tls = TLSConfig(
        server_root_ca_cert=b"authority", domain="temporal.example.com", client_cert=b"certificate", client_private_key=b"key"
    )
    assert config("mtls") == {**there, "tls": tls}


def test_rules_are_narrow(manifests: dict[str, list[Object]]) -> None:
    """No wildcard, no secret, no shell in a pod, and no way to give oneself more; each process has an account of its own."""
    objects = manifests["standalone"]
    for role in of_kind(objects, "ClusterRole", "Role"):
        for rule in role["rules"]:
            assert not {"*", "escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
            assert not {"*", "secrets", "pods/exec", "serviceaccounts", "serviceaccounts/token"} & set(rule["resources"])
            assert "*" not in rule["apiGroups"]
            assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    assert accounts == {one["metadata"]["name"] for one in workloads(objects)}
    assert all(template(one)["spec"]["serviceAccountName"] == one["metadata"]["name"] for one in workloads(objects))


def test_the_page_names_every_overlay() -> None:
    """docs/kubernetes.md tells of each overlay that is there, and of no other."""
    assert set(re.findall(r"deploy/overlays/([a-z-]+)", PAGE.read_text())) == set(OVERLAYS)


def on_the_page(kind: str) -> str:
    """The example of an object, as the page has it."""
    (written,) = [
        text for text in re.findall(r"```yaml\n(apiVersion:.*?)```", PAGE.read_text(), re.DOTALL) if f"kind: {kind}" in text
    ]
    return str(written)


async def test_the_job_of_the_page_is_a_job(kubeconfig: Path) -> None:
    """`rekindle submit` reads it, and the API server takes it as it is."""
    job = yaml.safe_load(on_the_page("TrainingJob"))
    assert parse(yaml.safe_dump(job)).spec.pods == 2
    job["metadata"]["namespace"] = "default"
    async with Api(kubeconfig) as api:
        created = await api.create(f"{TRAINING_JOB.path('default')}?dryRun=All", job)
    assert created["spec"]["kubernetes"] == job["spec"]["kubernetes"]


def test_the_overlay_of_the_page_says_what_the_page_says(program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image, its namespaces, only looking on, nothing of MindCluster touched, and a Secret that is there already."""
    written = on_the_page("Kustomization")
    (deploy.parent / "mine").mkdir()
    (deploy.parent / "mine" / "kustomization.yaml").write_text(written)
    objects = rendered(program, deploy.parent / "mine")
    assert not of_kind(objects, "Namespace", "Service", "Secret")
    for one in workloads(objects):
        assert container(one)["image"] == f"my-registry/rekindle-control-plane:{rekindle.__version__}"
        assert {"name": "temporal-tls", "mountPath": "/etc/rekindle/temporal", "readOnly": True} in container(one)["volumeMounts"]
        found = settings(objects, one, monkeypatch)
        assert (found.observe, found.namespaces) == (True, ("training",))


def test_kubectl_is_of_the_version_of_the_control_plane() -> None:
    """Both modules pin the same Kubernetes."""
    pinned = [re.findall(r"k8s\.io/kubernetes (v\S+)", (path / "go.mod").read_text()) for path in (MODULE, MODULE / "kubectl")]
    assert pinned[0] == pinned[1] != []


# ---- what a real API server says


class Kubectl:
    """As an administrator of the test's API server."""

    def __init__(self, program: str, kubeconfig: Path) -> None:
        self._command = [program, f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, objects: list[Object] | None = None) -> str:
        """Its output. `objects` are given to `-f -`."""
        done = self.attempt(*arguments, objects=objects)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *arguments: str, objects: list[Object] | None = None) -> subprocess.CompletedProcess[str]:
        given = yaml.safe_dump_all(objects) if objects else None
        return subprocess.run([*self._command, *arguments], input=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cluster(program: str, kubeconfig: Path, manifests: dict[str, list[Object]]) -> Iterator[Kubectl]:
    """What must be there before pods can be judged: the namespace, which stays, and the priority and the rules of access."""
    run, objects = Kubectl(program, kubeconfig), manifests["standalone"]
    first = of_kind(objects, "Namespace")
    rest = of_kind(objects, "PriorityClass", *ACCESS)
    run("apply", "--server-side", "--force-conflicts", "-f", "-", objects=first)
    run("apply", "--server-side", "--force-conflicts", "-f", "-", objects=rest)
    yield run
    run("delete", "--ignore-not-found", "--wait=false", "-f", "-", objects=rest)


@every_overlay
def test_the_server_takes_every_object(overlay: str, cluster: Kubectl, manifests: dict[str, list[Object]]) -> None:
    """Each object passes the API server's own checks, unknown fields included, as a dry run of what a user does."""
    said = cluster("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", objects=manifests[overlay])
    assert said.count("serverside-applied (server dry run)") == len(manifests[overlay]), said


@every_overlay
def test_pods_are_admitted_where_the_standard_is_restricted(
    overlay: str, cluster: Kubectl, manifests: dict[str, list[Object]]
) -> None:
    """The server's own pod security admission lets every pod of ours into our namespace, and none that may be root."""
    pods = [bare_pod(one) for one in workloads(manifests[overlay])]
    assert cluster("create", "--dry-run=server", "-f", "-", objects=pods).count("created (server dry run)") == len(pods)
    pods[0]["spec"]["securityContext"]["runAsNonRoot"] = False
    refused = cluster.attempt("create", "--dry-run=server", "-f", "-", objects=pods[:1])
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr


def bare_pod(one: Object) -> Object:
    metadata = {"name": one["metadata"]["name"], "namespace": NAMESPACE, "labels": template(one)["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(one)["spec"]}


@pytest.mark.parametrize("process", PROCESSES)
def test_the_server_hears_us_apart_from_all_other_accounts(
    process: str, cluster: Kubectl, manifests: dict[str, list[Object]]
) -> None:
    """What each of our processes asks has a flow and a priority of its own."""
    objects = of_kind(manifests["standalone"], *FLOW)
    cluster("apply", "--server-side", "--force-conflicts", "-f", "-", objects=objects)
    flow = json.loads(cluster("get", "flowschema", "rekindle", "-o", "json"))["metadata"]["uid"]
    account = f"--as=system:serviceaccount:{NAMESPACE}:rekindle-{process}"
    tries = (cluster.attempt("get", "--raw", "/api/v1/pods?limit=1", account, "-v=8").stderr.lower() for _ in range(100))
    assert any(f"x-kubernetes-pf-flowschema-uid: {flow}" in said for said in tries)  # the server takes a moment to heed it


MAY = (
    ("control", "delete", "", "pods", True),
    ("control", "delete", "", "nodes", False),
    ("watcher", "watch", "", "nodes", True),
    ("watcher", "delete", "", "pods", False),
    ("watcher", "patch", "batch", "jobs", False),
    ("gateway", "list", "", "pods", True),
    ("gateway", "delete", "", "pods", False),
    ("gateway", "create", "authentication.k8s.io", "tokenreviews", True),
    ("gateway", "create", "", "serviceaccounts/token", False),
    ("watcher", "create", "authentication.k8s.io", "tokenreviews", False),
    ("operator", "patch", "rekindle.io", "trainingjobs/status", True),
    ("operator", "delete", "rekindle.io", "trainingjobs", False),
    ("control", "get", "", "secrets", False),
    ("operator", "get", "", "secrets", False),
)


@pytest.mark.parametrize(("account", "verb", "group", "resource", "allowed"), MAY)
async def test_accounts_may_do_their_work_and_no_more(
    account: str, verb: str, group: str, resource: str, allowed: bool, cluster: Kubectl, kubeconfig: Path
) -> None:
    """In any namespace, as the server's own authorizer says."""
    assert (
        await may(kubeconfig, account, {"verb": verb, "group": group, "resource": resource, "namespace": "training"}) is allowed
    )


async def test_a_clusterd_is_looked_for_in_one_place_only(cluster: Kubectl, kubeconfig: Path) -> None:
    """Who starts may read that one Service, and no other."""
    for account in ("control", "watcher"):
        question = {"verb": "get", "resource": "services", "name": SERVICE, "namespace": NAMESPACE}
        assert await may(kubeconfig, account, question)
        assert not await may(kubeconfig, account, {**question, "namespace": "training"})
        assert not await may(kubeconfig, account, {**question, "name": "another"})


async def may(kubeconfig: Path, account: str, question: Object) -> bool:
    resource, _, part = question["resource"].partition("/")
    asked = {**question, "resource": resource, "subresource": part}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:rekindle-{account}", "resourceAttributes": asked}
    async with Api(kubeconfig) as api:
        answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(answer["status"]["allowed"])


def test_taking_over_keeps_the_address_of_the_service(cluster: Kubectl, manifests: dict[str, list[Object]]) -> None:
    """Jobs that run know it as a number. However ClusterD's Service was made, ours has none of its selector; and back again."""
    metadata = {"name": SERVICE, "namespace": NAMESPACE, "labels": {"app": "clusterd"}}
    spec = {"selector": {"app": "clusterd"}, "ports": [{"port": 8899, "targetPort": 8899}]}
    theirs: Object = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    ours = of_kind(manifests["take-over"], "Service")

    def service() -> Object:
        found: Object = json.loads(cluster("get", "-n", NAMESPACE, "service", SERVICE, "-o", "json"))
        return found

    cluster("create", "-f", "-", objects=[theirs])
    try:
        before = service()
        cluster("apply", "--server-side", "--force-conflicts", "-f", "-", objects=ours)
        after = service()
        assert after["spec"]["clusterIP"] == before["spec"]["clusterIP"]
        assert after["spec"]["selector"] == ours[0]["spec"]["selector"]
        assert [port["targetPort"] for port in after["spec"]["ports"]] == ["grpc"]
        cluster("apply", "--server-side", "--force-conflicts", "-f", "-", objects=[theirs])
        cluster("label", "-n", NAMESPACE, "service", SERVICE, f"{PART_OF}-")
        back = service()
        assert back["spec"]["clusterIP"] == before["spec"]["clusterIP"]
        assert back["spec"]["selector"] == spec["selector"]
        assert PART_OF not in back["metadata"]["labels"]
    finally:
        cluster("delete", "-n", NAMESPACE, "service", SERVICE)
