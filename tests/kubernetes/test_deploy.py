"""Properties that the manifests of `deploy` must keep."""

import importlib.util
import re
from base64 import b64decode
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
from rekindle.errors import BadInput
from rekindle.model.manifest import parse
from rekindle.model.rule_file import rules_of
from rekindle.settings import Settings
from simulators.kubernetes.binaries import MODULE
from tests.kubernetes.world.manifests import (
    OURS,
    OVERLAYS,
    ROOT,
    chooses,
    container,
    environment,
    every_overlay,
    named,
    of_kind,
    on_the_page,
    rendered,
    settings,
    template,
    workloads,
)
from workers.other_controller import NAMESPACE, SERVICE
from workers.process import refuse_another_namespace

pytestmark = pytest.mark.timeout(600)  # the first one of a machine builds kubectl


@every_overlay
def test_no_container_is_root_or_writes_to_its_image(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Containers run as a user other than root, cannot become root, have no capability and the default system calls. Only volumes
    are writable."""
    for one in workloads(manifests[overlay]):
        pod, main = template(one)["spec"]["securityContext"], container(one)["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] >= 10_000
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert main == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert "/tmp" in {mount["mountPath"] for mount in container(one)["volumeMounts"]}


@every_overlay
def test_every_process_is_probed(overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Startup, liveness and readiness probes use ports of the container. A gateway is ready when its own gRPC service says so."""
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
    """A setting that no process reads is a spelling error. All other settings are read without error."""
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
    """A component mounts the rules of an administrator where the setting says, and `rekindle check` accepts the file. A change of
    it replaces the pods."""
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


def test_any_namespace_is_named_once(program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting and one component are enough: no object of ours stays in the old namespace, and roles in other namespaces stay
    there."""
    overlay, components = (
        deploy / "elsewhere",
        [f"../components/{name}" for name in ("rules-ascend", "rules-nvidia", "namespace")],
    )
    own = {"name": "rekindle-settings", "namespace": NAMESPACE, "behavior": "merge", "literals": ["REKINDLE_NAMESPACE=elsewhere"]}
    overlay.mkdir()
    written = {"resources": ["../overlays/standalone"], "components": components, "configMapGenerator": [own]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(written))
    objects = rendered(program, overlay)
    named_so = [one["metadata"]["name"] for one in objects if NAMESPACE in yaml.safe_dump(one)]
    assert sorted(set(named_so)) == ["rekindle-control-faults", "rekindle-watcher-faults"], "where ConfigMaps of MindCluster are"
    assert all("elsewhere" in yaml.safe_dump(one) for one in of_kind(objects, "FlowSchema", "Namespace", "ClusterRoleBinding"))
    roles = {one["metadata"]["namespace"] for one in of_kind(objects, "Role")}
    assert roles == {"elsewhere", "default", "kube-system", "cluster-system", NAMESPACE}
    subjects = [subject for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding") for subject in one["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {"elsewhere"}
    for one in workloads(objects):
        assert one["metadata"]["namespace"] == settings(objects, one, monkeypatch).namespace == "elsewhere"
        assert settings(objects, one, monkeypatch).gateway_address == f"{SERVICE}.elsewhere.svc:8899"


def test_a_process_refuses_to_run_in_another_namespace_than_its_settings_say(tmp_path: Path) -> None:
    """Rights and gateway address would belong to the other namespace. Outside of a pod the namespace is unknown, and nothing is
    refused."""
    of_pod = tmp_path / "namespace"
    refuse_another_namespace(Settings(cluster="kubernetes"), of_pod)
    of_pod.write_text("elsewhere")
    refuse_another_namespace(Settings(cluster="kubernetes", namespace="elsewhere"), of_pod)
    refuse_another_namespace(Settings(cluster="kubernetes", kubeconfig=tmp_path), of_pod)
    with pytest.raises(BadInput, match="REKINDLE_NAMESPACE=elsewhere"):
        refuse_another_namespace(Settings(cluster="kubernetes"), of_pod)


@every_overlay
def test_no_service_becomes_a_setting(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Kubernetes would set REKINDLE_GATEWAY_PORT=tcp://... for a Service `rekindle-gateway`, if the pods did not disable that."""
    assert all(template(one)["spec"]["enableServiceLinks"] is False for one in workloads(manifests[overlay]))


@every_overlay
def test_every_command_names_a_module(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Each process is a module of `workers`, in this version's image."""
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
    """Name, namespace and port are those of the contract. The gateways are reached by them, and jobs receive the same address."""
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
    """All objects and pods are part of rekindle: by that label our Service differs from ClusterD's, and everything can be
    removed."""
    for one in manifests[overlay]:
        assert one["metadata"]["labels"].items() >= OURS.items(), one["metadata"]["name"]
    for one in workloads(manifests[overlay]):
        assert chooses(OURS, one)


@every_overlay
def test_policies_and_budgets_choose_our_pods_only(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """Other pods live in the namespace. A peer that is not named is not admitted, and each of our pods has a policy."""
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
"""Ports of Temporal's services and of its web page."""


@every_overlay
def test_no_overlay_opens_temporal(overlay: str, manifests: dict[str, list[Object]]) -> None:
    """No overlay installs a Temporal that others can call: a caller of Temporal can delete pods by our account."""
    objects = manifests[overlay]
    served = {port["port"] for one in of_kind(objects, "Service") for port in one["spec"]["ports"]}
    listened = {port["containerPort"] for one in workloads(objects) for port in container(one)["ports"]}
    admitted = {
        port["port"] for one in of_kind(objects, "NetworkPolicy") for rule in one["spec"]["ingress"] for port in rule["ports"]
    }
    assert not TEMPORAL_PORTS & (served | listened | admitted)


@pytest.mark.parametrize("overlay", ["observe", "take-over"])
def test_beside_mindcluster_the_namespace_stays_as_it_is(
    overlay: str, manifests: dict[str, list[Object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace is not written, because components of MindCluster live there and need more than `restricted` allows. An
    observing installation also leaves the Service alone."""
    objects = manifests[overlay]
    assert not of_kind(objects, "Namespace")
    assert len(of_kind(objects, "Service")) == (overlay == "take-over")
    for one in workloads(objects):
        assert settings(objects, one, monkeypatch).observe == (overlay == "observe")


def test_temporal_is_reached_as_the_overlay_says(manifests: dict[str, list[Object]], tmp_path: Path) -> None:
    """Temporal is reached by address and namespace only, by a key, or by certificates from mounted files. The SDK itself reads
    the environment."""

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
    """docs/kustomize.md names each overlay that exists, and no other."""
    page = (ROOT / "docs" / "kustomize.md").read_text()
    assert set(re.findall(r"deploy/overlays/([a-z-]+)", page)) == set(OVERLAYS)


async def test_the_job_of_the_page_is_a_job(kubeconfig: Path) -> None:
    """`rekindle submit` reads it, and the API server takes it as it is."""
    job = yaml.safe_load(on_the_page("TrainingJob"))
    assert parse(yaml.safe_dump(job)).spec.pods == 2
    job["metadata"]["namespace"] = "default"
    async with Api(kubeconfig) as api:
        created = await api.create(f"{TRAINING_JOB.path('default')}?dryRun=All", job)
    assert created["spec"]["kubernetes"] == job["spec"]["kubernetes"]


def test_the_overlay_of_the_page_says_what_the_page_says(program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overlay has the image and namespaces of the page, observes only, writes no object of MindCluster, and uses an existing
    Secret."""
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
