"""Manifests of the admission webhook: they fit its settings, its policy and the other manifests."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Object
from rekindle.policy.parameters import admission
from rekindle.policy.parameters.kinds.table import KINDS
from rekindle.settings import Settings
from tests.kubernetes.world.manifests import OURS, chooses, container, environment, named, of_kind, rendered, settings, template
from workers.webhook.certificate_sources import NAME
from workers.webhook.server import ANSWERED

pytestmark = pytest.mark.timeout(600)  # the first one of a machine builds kubectl

CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
NAMESPACE = "mindx-dl"


def overlay(program: str, deploy: Path, name: str, *components: str, namespace: str = NAMESPACE) -> list[Object]:
    """Returns the objects of an overlay with these components."""
    folder = deploy / f"webhook-{name}"
    folder.mkdir(exist_ok=True)
    own = {
        "name": "rekindle-settings",
        "namespace": NAMESPACE,
        "behavior": "merge",
        "literals": [f"REKINDLE_NAMESPACE={namespace}"],
    }
    written = {
        "resources": ["../overlays/standalone"],
        "components": [f"../components/{component}" for component in components],
        "configMapGenerator": [own],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return rendered(program, folder)


@pytest.fixture(scope="module")
def plain(program: str, deploy: Path) -> list[Object]:
    return overlay(program, deploy, "plain", "webhook")


def test_the_process_is_like_the_others(plain: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that all pods have in common are not merged into a component, and have to be the same."""
    one, other = (named(plain, "Deployment", f"rekindle-{name}") for name in ("webhook", "operator"))
    pod, same = template(one)["spec"], template(other)["spec"]
    for field in ("priorityClassName", "enableServiceLinks", "tolerations", "securityContext"):
        assert pod[field] == same[field]
    main, peer = container(one), container(other)
    for field in ("image", "startupProbe", "livenessProbe", "readinessProbe", "securityContext", "volumeMounts"):
        assert main[field] == peer[field]
    assert main["envFrom"] == peer["envFrom"][:1], "of the same name, and it needs no Temporal"
    assert importlib.util.find_spec(main["command"][-1])
    assert one["spec"]["replicas"] == 2
    found = settings(plain, one, monkeypatch)
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert ports == {"health": found.health_port, "webhook": found.webhook_port}
    assert found.gateway_host == "10.0.0.7"


def test_the_api_server_reaches_it(plain: list[Object]) -> None:
    """Service, budget and network policy are those of its pods, and everything is labelled."""
    one = named(plain, "Deployment", NAME)
    service, policy = named(plain, "Service", NAME), named(plain, "NetworkPolicy", NAME)
    budget = named(plain, "PodDisruptionBudget", NAME)
    for selector in (
        service["spec"]["selector"],
        policy["spec"]["podSelector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
    ):
        assert chooses(selector, one)
        assert selector.items() >= {**OURS, "app.kubernetes.io/component": "webhook"}.items()
    (port,) = service["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": 8443} in container(one)["ports"]
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 8443, "protocol": "TCP"}]}]
    for thing in of_kind(plain, *CONFIGURATIONS):
        (webhook,) = thing["webhooks"]
        client = webhook["clientConfig"]["service"]
        assert (client["name"], client["namespace"], client["port"]) == (NAME, NAMESPACE, port["port"])
        assert client["path"] == f"/{webhook['name'].partition('.')[0]}"
    assert all(thing["metadata"]["labels"].items() >= OURS.items() for thing in plain)
    assert all(thing["metadata"].get("namespace", NAMESPACE) == NAMESPACE for thing in plain)


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_only_jobs_that_ask_are_sent(kind: str, plain: list[Object]) -> None:
    """The API server itself compares labels and annotations with those of the policy. Jobs of the system are not sent."""
    (webhook,) = named(plain, kind, NAME)["webhooks"]
    asks, ours = webhook["matchConditions"]
    found = re.findall(r"\[([^]]*)\]\s*\.exists\(key, key in object\.metadata\.(labels|annotations)\)", asks["expression"])
    listed = {part: tuple(word.strip(" '") for word in words.split(",")) for words, part in found}
    assert listed == {"labels": admission.ASKING_LABELS, "annotations": admission.ASKING_ANNOTATIONS}
    assert ours["expression"].endswith(f"'system:serviceaccounts:' + '{NAMESPACE}')")
    (selector,) = webhook["namespaceSelector"]["matchExpressions"]
    assert selector == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["admissionReviewVersions"]) == ("Ignore", "None", ["v1"])
    assert ANSWERED < webhook["timeoutSeconds"] <= 5
    operations = {operation for rule in webhook["rules"] for operation in rule["operations"]}
    assert operations == {"CREATE", "UPDATE"}
    assert len(webhook["rules"]) == sum(not row.of_operator for row in KINDS.values())


def test_another_namespace_is_named_once(program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object names the old one."""
    objects = overlay(program, deploy, "elsewhere", "webhook", "webhook/cert-manager", "namespace", namespace="elsewhere")
    assert [thing["metadata"]["name"] for thing in objects if NAMESPACE in yaml.safe_dump(thing)] == []
    assert settings(objects, named(objects, "Deployment", NAME), monkeypatch).namespace == "elsewhere"
    (name,) = named(objects, "Certificate", NAME)["spec"]["dnsNames"]
    assert name == f"{NAME}.elsewhere.svc"


def test_cert_manager_takes_the_place_of_own_certificates(program: str, deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The webhook reads a mounted Secret, has no right to any, and the configurations name the certificate."""
    objects = overlay(program, deploy, "cert-manager", "webhook", "webhook/cert-manager")
    one = named(objects, "Deployment", NAME)
    mounts = {mount["name"]: mount["mountPath"] for mount in container(one)["volumeMounts"]}
    certificate = named(objects, "Certificate", NAME)
    (volume,) = (volume for volume in template(one)["spec"]["volumes"] if "secret" in volume)
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    assert str(settings(objects, one, monkeypatch).webhook_certificates) == mounts[volume["name"]]
    assert environment(objects, one)["POD_IP"]
    assert certificate["spec"]["dnsNames"] == [f"{NAME}.{NAMESPACE}.svc"]
    for thing in of_kind(objects, *CONFIGURATIONS):
        assert thing["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{NAME}"}
    assert not of_kind(objects, "Secret")
    rules = [rule for role in of_kind(objects, "Role", "ClusterRole") for rule in role["rules"]]
    assert not [rule for rule in rules if "secrets" in rule["resources"] or "admissionregistration.k8s.io" in rule["apiGroups"]]


def test_an_overlay_lets_no_job_pass(program: str, deploy: Path) -> None:
    """The component changes both configurations."""
    objects = overlay(program, deploy, "fail-closed", "webhook", "webhook/fail-closed")
    assert [thing["webhooks"][0]["failurePolicy"] for thing in of_kind(objects, *CONFIGURATIONS)] == ["Fail", "Fail"]


def test_the_server_takes_every_object(kubeconfig: Path, program: str, plain: list[Object]) -> None:
    """Each object passes the API server's own checks, unknown fields and the conditions of the configurations included."""
    objects = [one for one in plain if one["metadata"]["name"].startswith(NAME)]
    assert {one["kind"] for one in objects} > {*CONFIGURATIONS, "Deployment", "Service", "Secret", "NetworkPolicy", "Role"}
    command = [program, f"--kubeconfig={kubeconfig}", "apply", "--server-side", "--dry-run=server", "-f", "-"]
    given = yaml.safe_dump_all([*of_kind(plain, "Namespace"), *objects])
    subprocess.run([*command[:4], *command[5:]], input=yaml.safe_dump_all(of_kind(plain, "Namespace")), check=True, text=True)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.stdout.count("serverside-applied (server dry run)") == len(objects) + 1, done.stderr


def test_settings_name_the_port_of_the_manifests() -> None:
    """Nobody has to set it."""
    assert Settings().webhook_port == 8443
