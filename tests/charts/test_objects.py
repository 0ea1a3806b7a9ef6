"""Objects that the chart renders: what each of its values adds, removes and changes."""

import json
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.world.manifests import container, named, of_kind, settings, template, workloads
from tests.support.charts import CRDS_CHART, Name, Object, given, objects, texts
from tests.support.charts import names as names_of

ROOT = Path(__file__).parents[2]

DEFAULT = names_of(objects(given()))

OF_THE_WEBHOOK = {
    *((kind, "mindx-dl", "rekindle-webhook") for kind in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount")),
    ("NetworkPolicy", "mindx-dl", "rekindle-webhook"),
    *((kind, "", "rekindle-webhook") for kind in ("ClusterRole", "ClusterRoleBinding")),
    *((f"{kind}WebhookConfiguration", "", "rekindle-webhook") for kind in ("Mutating", "Validating")),
}

OF_OWN_CERTIFICATES = {
    ("Secret", "mindx-dl", "rekindle-webhook"),
    *((kind, "mindx-dl", "rekindle-webhook-certificates") for kind in ("Role", "RoleBinding")),
    *((kind, "", "rekindle-webhook-certificates") for kind in ("ClusterRole", "ClusterRoleBinding")),
}

TEST_JOB = "rekindle-test-22b5b2dd"
"""Name with a digest of the release's namespace and Temporal, so that the test finds no job of a tenant by it."""

SWITCHES: tuple[tuple[Object, set[Name], set[Name]], ...] = (
    (
        {"networkPolicy__enabled": False},
        {("NetworkPolicy", "mindx-dl", "rekindle"), ("NetworkPolicy", "mindx-dl", "rekindle-gateway")},
        set(),
    ),
    (
        {"disruptionBudgets__enabled": False},
        {("PodDisruptionBudget", "mindx-dl", "rekindle-control"), ("PodDisruptionBudget", "mindx-dl", "rekindle-gateway")},
        set(),
    ),
    ({"control__replicas": 1}, {("PodDisruptionBudget", "mindx-dl", "rekindle-control")}, set()),
    ({"gateway__replicas": 1}, {("PodDisruptionBudget", "mindx-dl", "rekindle-gateway")}, set()),
    ({"flowControl__enabled": False}, {("PriorityLevelConfiguration", "", "rekindle"), ("FlowSchema", "", "rekindle")}, set()),
    (
        {"shared__priorityClasses": False},
        {
            ("PriorityClass", "", "rekindle"),
            ("ValidatingAdmissionPolicy", "", "rekindle-priority"),
            ("ValidatingAdmissionPolicyBinding", "", "rekindle-priority"),
        },
        set(),
    ),
    ({"shared__standbyPriorityClass": False}, {("PriorityClass", "", "rekindle-standby")}, set()),
    (
        {"shared__marks": False},
        {("ValidatingAdmissionPolicy", "", "rekindle-marks"), ("ValidatingAdmissionPolicyBinding", "", "rekindle-marks")},
        set(),
    ),
    (
        {"shared__trainingJobRoles": False},
        {("ClusterRole", "", "rekindle-trainingjobs-view"), ("ClusterRole", "", "rekindle-trainingjobs-edit")},
        set(),
    ),
    ({"observe": True}, {("Service", "mindx-dl", "clusterd-grpc-svc")}, set()),
    ({"podMonitor__enabled": True}, set(), {("PodMonitor", "mindx-dl", "rekindle")}),
    ({"prometheusRule__enabled": True}, set(), {("PrometheusRule", "mindx-dl", "rekindle")}),
    (
        {"dashboards__enabled": True},
        set(),
        {("ConfigMap", "mindx-dl", f"rekindle-dashboard-{name}") for name in ("control-plane", "installation", "job")},
    ),
    ({"control__autoscaling__enabled": True}, set(), {("ScaledObject", "mindx-dl", "rekindle-control")}),
    (  # a budget for the single one would hold each drain for ever
        {"control__autoscaling__enabled": True, "control__autoscaling__minReplicas": 1},
        {("PodDisruptionBudget", "mindx-dl", "rekindle-control")},
        {("ScaledObject", "mindx-dl", "rekindle-control")},
    ),
    (
        {"control__autoscaling__enabled": True, "temporal__apiKey__secretName": "key"},
        set(),
        {("ScaledObject", "mindx-dl", "rekindle-control"), ("TriggerAuthentication", "mindx-dl", "rekindle-temporal")},
    ),
    ({"webhook__enabled": True}, set(), OF_THE_WEBHOOK | OF_OWN_CERTIFICATES),
    (
        {"webhook__enabled": True, "webhook__replicas": 1, "networkPolicy__enabled": False},
        {("NetworkPolicy", "mindx-dl", "rekindle"), ("NetworkPolicy", "mindx-dl", "rekindle-gateway")},
        (OF_THE_WEBHOOK | OF_OWN_CERTIFICATES)
        - {(kind, "mindx-dl", "rekindle-webhook") for kind in ("NetworkPolicy", "PodDisruptionBudget")},
    ),
    (
        {"webhook__enabled": True, "webhook__certManager__enabled": True},
        set(),
        OF_THE_WEBHOOK | {(kind, "mindx-dl", "rekindle-webhook") for kind in ("Issuer", "Certificate")},
    ),
    ({"test__image": "training:1"}, set(), {("TrainingJob", "mindx-dl", TEST_JOB), ("Pod", "mindx-dl", "rekindle-test")}),
    ({"rules__set": "own", "rules__own": "kind: Rules"}, set(), {("ConfigMap", "mindx-dl", "rekindle-rules")}),
    (
        {"rules__set": "nvidia"},
        set(),
        {
            (kind, "default", f"rekindle-{process}-events-of-nodes")
            for kind in ("Role", "RoleBinding")
            for process in ("control", "watcher")
        },
    ),
    (
        {"rules__set": "ascend"},
        set(),
        {
            (kind, place, f"rekindle-{process}-faults")
            for kind in ("Role", "RoleBinding")
            for place in ("kube-system", "mindx-dl", "cluster-system")
            for process in ("control", "watcher")
        }
        | {(kind, "cluster-system", "rekindle-public-faults") for kind in ("Role", "RoleBinding")},
    ),
    (
        {"contractWords": True},
        set(),
        {(kind, "cluster-system", "rekindle-control-words") for kind in ("Role", "RoleBinding")}
        | {("ClusterRole", "", "rekindle-control-words"), ("ClusterRoleBinding", "", "rekindle-control-words")},
    ),
    (
        {"temporal__address": "", "temporal__trial__enabled": True, "temporal__trial__image": "temporal:1"},
        set(),
        {(kind, "mindx-dl", "rekindle-temporal") for kind in ("StatefulSet", "Service", "NetworkPolicy")},
    ),
)


@pytest.mark.parametrize(("values", "removed", "added"), SWITCHES, ids=lambda one: ",".join(one) if isinstance(one, dict) else "")
def test_a_switch_adds_and_removes_its_objects_only(values: Object, removed: set[Name], added: set[Name]) -> None:
    """Compares each switch with the default installation, object by object."""
    assert names_of(objects(given(**values))) == (DEFAULT - removed) | added


@pytest.mark.parametrize("component", ["rules-nvidia", "rules-ascend", "contract-words"])
def test_components_of_kustomize_have_the_rights_of_the_chart(component: str) -> None:
    """A component and the value of the same name grant the same."""
    values = given(contractWords=True) if component == "contract-words" else given(rules__set=component.removeprefix("rules-"))
    written = yaml.safe_load_all((ROOT / "deploy" / "components" / component / "rbac.yaml").read_text())
    added = [one for one in objects(values) if name_of_new(one)]
    assert sorted(map(json.dumps, written)) == sorted(map(json.dumps, added))


def name_of_new(one: Object) -> bool:
    return one["kind"] in {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} and not names_of([one]) <= DEFAULT


@pytest.mark.parametrize("process", ["control", "gateway", "watcher", "operator"])
def test_a_process_is_placed_and_sized_by_its_values(process: str) -> None:
    """Resources, selectors, tolerations, affinity and variables of one process are those of its values, and no other's."""
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    affinity: Object = {"nodeAffinity": {}}
    variables = [{"name": "HTTPS_PROXY", "value": "http://proxy"}]
    values = {
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [toleration],
        "affinity": affinity,
        "env": variables,
    }
    for one in workloads(objects({**given(), process: values})):
        spec, main = template(one)["spec"], container(one)
        is_meant = one["metadata"]["name"] == f"rekindle-{process}"
        assert (main["resources"]["limits"] == {"memory": "2Gi"}) is is_meant
        assert (main["resources"]["requests"]["memory"] == "1Gi") is is_meant
        assert "cpu" in main["resources"]["requests"]
        assert (spec.get("nodeSelector") == {"pool": "system"}) is is_meant
        assert (toleration in spec["tolerations"]) is is_meant
        assert (spec.get("affinity") == affinity) is is_meant
        assert (variables[0] in main.get("env", [])) is is_meant


def test_the_webhook_is_placed_and_sized_by_its_values() -> None:
    """Pods of the webhook have what its values say, and run the image of the others."""
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    variable = {"name": "HTTPS_PROXY", "value": "http://proxy"}
    webhook = {
        "enabled": True,
        "replicas": 3,
        "resources": {"limits": {"memory": "2Gi"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [toleration],
        "affinity": {"nodeAffinity": {}},
        "env": [variable],
    }
    found = objects({**given(), "webhook": webhook, "image": {"tag": "1.2", "pullSecrets": ["registry"]}})
    one = named(found, "Deployment", "rekindle-webhook")
    spec, main = template(one)["spec"], container(one)
    assert (one["spec"]["replicas"], main["image"]) == (3, "rekindle-control-plane:1.2")
    assert (spec["nodeSelector"], spec["affinity"]) == ({"pool": "system"}, {"nodeAffinity": {}})
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert toleration in spec["tolerations"]
    assert main["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
    assert variable in main["env"]


@pytest.mark.parametrize("closed", [False, True])
def test_jobs_pass_while_the_webhook_is_away_unless_it_is_closed(closed: bool) -> None:
    """`webhook.failClosed` is the policy of both configurations."""
    found = objects(given(webhook={"enabled": True, "failClosed": closed}))
    configurations = of_kind(found, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    assert {one["webhooks"][0]["failurePolicy"] for one in configurations} == {"Fail" if closed else "Ignore"}


def test_the_webhook_is_not_asked_about_jobs_that_are_not_served() -> None:
    """Jobs of other namespaces are neither judged nor kept waiting."""
    found = objects(given(namespaces=["training", "other"], webhook__enabled=True))
    for one in of_kind(found, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        _, served = one["webhooks"][0]["namespaceSelector"]["matchExpressions"]
        assert served == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["training", "other"]}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "rekindle-control-plane:0.1.0"),
        ({"repository": "registry.example.com:5000/rekindle", "tag": "1.2"}, "registry.example.com:5000/rekindle:1.2"),
        ({"digest": "sha256:" + "0" * 64}, "rekindle-control-plane@sha256:" + "0" * 64),
        ({"tag": "1.2", "digest": "sha256:" + "0" * 64}, "rekindle-control-plane:1.2@sha256:" + "0" * 64),
    ],
)
def test_an_image_is_named_by_tag_or_digest(image: Object, expected: str) -> None:
    """Processes run one image, pulled with the Secrets of the values."""
    values = {**given(), "image": {**image, "pullSecrets": ["registry"], "pullPolicy": "Always"}}
    for one in workloads(objects(values)):
        assert container(one)["image"] == expected
        assert container(one)["imagePullPolicy"] == "Always"
        assert template(one)["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_a_service_that_was_there_before_stays() -> None:
    """Clients of ClusterD know it by its address. Helm deletes the Service of an installation that brought its own."""
    (service,) = of_kind(objects(given()), "Service")
    assert "annotations" not in service["metadata"]
    (service,) = of_kind(objects(given(service__keep=True)), "Service")
    assert service["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_changed_setting_replaces_the_pods() -> None:
    """The pods of all processes carry a hash of the settings."""

    def hashes(**values: object) -> set[str]:
        return {template(one)["metadata"]["annotations"]["rekindle.io/settings"] for one in workloads(objects(given(**values)))}

    assert len(hashes()) == 1
    assert hashes() != hashes(log__level="DEBUG")
    assert hashes() != hashes(temporal__namespace="other")
    assert hashes(rules__set="own", rules__own="kind: Rules") != hashes(rules__set="own", rules__own="{kind: Rules}")
    assert hashes() == hashes(gateway__replicas=3)


def test_gateways_know_their_number() -> None:
    """`REKINDLE_GATEWAYS` is the number of replicas."""
    (one,) = of_kind(objects(given(gateway__replicas=5)), "StatefulSet")
    assert one["spec"]["replicas"] == 5
    assert {"name": "REKINDLE_GATEWAYS", "value": "5"} in container(one)["env"]


def test_keda_sets_the_replicas_of_control_workers() -> None:
    """The Deployment has no number of its own, which would undo KEDA's at each upgrade."""
    values = given(
        control__autoscaling={"enabled": True, "minReplicas": 3, "maxReplicas": 9, "backlog": 7},
        temporal__tls__secretName="certificates",
        temporal__serverName="temporal.example.com",
        temporal__namespace="rekindle",
    )
    found = objects(values)
    assert "replicas" not in named(found, "Deployment", "rekindle-control")["spec"]
    (scaled,) = of_kind(found, "ScaledObject")
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (3, 9)
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "temporal"
    assert trigger["metadata"] == {  # KEDA counts the tasks of all versions only if it is told to select none
        "endpoint": "temporal.example.com:7233",
        "namespace": "rekindle",
        "taskQueue": "rekindle",
        "queueTypes": "workflow,activity",
        "targetQueueSize": "7",
        "tlsServerName": "temporal.example.com",
    }
    (authentication,) = of_kind(found, "TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert {one["parameter"]: one["key"] for one in authentication["spec"]["secretTargetRef"]} == {
        "ca": "ca.crt",
        "cert": "tls.crt",
        "key": "tls.key",
    }


def test_ports_that_are_called_are_open() -> None:
    """The network policy follows the address of Temporal and of the collector of traces."""
    values = given(
        temporal__address="temporal:17233",
        tracing__endpoint="http://collector:4318/v1",
        networkPolicy__apiServerPorts=[16443],
        networkPolicy__extraPorts=[9000],
    )
    policy = named(objects(values), "NetworkPolicy", "rekindle")
    open_ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert open_ports == {53, 17233, 4318, 16443, 9000}
    variables = named(objects(values), "ConfigMap", "rekindle-settings")["data"]
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318/v1"


def test_of_the_secret_with_the_api_key_only_the_key_is_read() -> None:
    """A user who may write the Secret sets no other variable of a process. A Secret without the key is an error of the pod."""
    key = {"name": "TEMPORAL_API_KEY", "valueFrom": {"secretKeyRef": {"name": "123", "key": "TEMPORAL_API_KEY"}}}
    found = objects(given(temporal__apiKey__secretName="123", test__image="training:1"))
    pods = [container(one) for one in workloads(found)] + [named(found, "Pod", "rekindle-test")["spec"]["containers"][0]]
    for one in pods:
        assert key in one["env"]
        assert not [source for source in one["envFrom"] if "secretRef" in source]


def test_a_name_that_looks_like_a_number_stays_a_text() -> None:
    """The API server refuses a number, and takes the release's namespace in the place of nothing."""
    secrets = {"temporal__tls__secretName": "123", "image__pullSecrets": ["true"], "control__autoscaling__enabled": True}
    found = objects(given(namespaces=["null"], rbac__scope="namespaces", **secrets))
    assert {namespace for kind, namespace, _ in names_of(found) if kind == "Role"} == {"null", "mindx-dl", "default"}
    (authentication,) = of_kind(found, "TriggerAuthentication")
    assert {one["name"] for one in authentication["spec"]["secretTargetRef"]} == {"123"}
    for one in workloads(found):
        spec = template(one)["spec"]
        assert spec["imagePullSecrets"] == [{"name": "true"}]
        assert {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume} == {"123"}


def test_the_pod_of_the_test_is_pulled_and_placed_like_a_control_worker() -> None:
    """The pod of a test stays for its log, and the job ends by itself if nobody deletes it."""
    toleration = {"key": "system", "operator": "Exists"}
    image = {"pullSecrets": ["registry"], "pullPolicy": "Always"}
    control = {"nodeSelector": {"pool": "system"}, "tolerations": [toleration]}
    found = objects(given(test={"image": "training:1", "seconds": 600}, image=image, control=control))
    pod, job = named(found, "Pod", "rekindle-test"), named(found, "TrainingJob", TEST_JOB)
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == ({"pool": "system"}, [toleration])
    assert pod["spec"]["imagePullSecrets"] == job["spec"]["kubernetes"]["pod"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "hook-succeeded" not in pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    (steps,) = (int(word.removeprefix("--steps=")) for word in job["spec"]["command"] if word.startswith("--steps="))
    assert "--step-ms=200" in job["spec"]["command"]
    assert 600 < steps * 0.2 < 2 * 600


def test_rules_of_one_s_own_are_mounted_where_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file reaches every process, with the rights of the sets that its rules read."""
    own = "apiVersion: rekindle.io/v1\nkind: Rules\nspec: {use: [nvidia], rules: []}\n"
    found = objects(given(rules={"set": "own", "own": own, "reads": ["nvidia"]}))
    assert named(found, "ConfigMap", "rekindle-rules")["data"] == {"rules.yaml": own}
    for one in workloads(found):
        (mount,) = (mount for mount in container(one)["volumeMounts"] if mount["name"] == "rules")
        assert settings(found, one, monkeypatch).rules == f"{mount['mountPath']}/rules.yaml"
    assert ("Role", "default", "rekindle-watcher-events-of-nodes") in names_of(found)


def test_dashboards_and_alerts_are_those_of_the_repository() -> None:
    """ConfigMaps and PrometheusRule hold `deploy/monitoring`, with the labels by which they are found."""
    found = objects(
        given(
            dashboards__enabled=True,
            dashboards__labels={"grafana_dashboard": "1", "team": "a"},
            prometheusRule__enabled=True,
            prometheusRule__labels={"release": "prometheus"},
        )
    )
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    for path in (ROOT / "deploy" / "monitoring" / "dashboards").glob("*.json"):
        config = named(found, "ConfigMap", f"rekindle-dashboard-{path.stem}")
        assert json.loads(config["data"][f"rekindle-{path.name}"]) == json.loads(path.read_text())
        assert config["metadata"]["labels"]["team"] == "a"


def test_in_namespaces_nothing_else_is_granted_in_the_whole_cluster() -> None:
    """Roles in the served namespaces grant pods and jobs. ClusterRoles grant nodes, namespaces, reviews of tokens, and what our
    policies ask for."""
    values = given(namespaces=["training", "other"], rbac__scope="namespaces")
    found = objects(values, "recoveries")
    everywhere = [one for one in of_kind(found, "ClusterRole") if "trainingjobs" not in one["metadata"]["name"]]
    granted = {resource for one in everywhere for rule in one["rules"] for resource in rule["resources"]}
    assert granted == {"nodes", "namespaces", "tokenreviews", "leases", "marks", "priority", "services", "endpointslices"}
    for namespace in ("training", "other"):
        assert {name for kind, where, name in names_of(found) if (kind, where) == ("Role", namespace)} == {
            f"rekindle-recoveries-{process}" for process in ("control", "gateway", "watcher", "operator")
        }
    assert not {name for kind, where, name in names_of(found) if where == "mindx-dl"}
    subjects = [subject for one in of_kind(found, "RoleBinding", "ClusterRoleBinding") for subject in one["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {"recoveries"}


def test_both_scopes_grant_the_same_in_a_served_namespace() -> None:
    """Rules of an account are split and none is lost."""

    def rules(values: Object) -> set[str]:
        roles = [
            one
            for one in of_kind(objects(values), "Role", "ClusterRole")
            if one["metadata"]["name"].endswith(("-control", "-watcher"))
        ]
        return {json.dumps(rule) for one in roles for rule in one["rules"]}

    assert rules(given()) == rules(given(namespaces=["training"], rbac__scope="namespaces"))


def test_the_trial_is_reached_by_our_pods_only() -> None:
    """Temporal of the trial has a volume, is called by pods of ours and by no others, and the processes have its address."""
    found = objects(given(temporal={"trial": {"enabled": True, "image": "temporal:1", "storage": {"size": "9Gi"}}}))
    stateful = named(found, "StatefulSet", "rekindle-temporal")
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"
    (rule,) = named(found, "NetworkPolicy", "rekindle-temporal")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "rekindle"}}}]
    assert named(found, "ConfigMap", "rekindle-temporal")["data"]["TEMPORAL_ADDRESS"] == "rekindle-temporal.mindx-dl.svc:7233"
    security = template(stateful)["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True


def test_notes_say_what_to_type_next() -> None:
    """Notes name the release's namespace, `rekindle doctor`, and what the values add."""

    def notes(**values: object) -> str:
        return texts(given(**values), "recoveries")["rekindle/templates/NOTES.txt"]

    assert "kubectl -n recoveries exec deployment/rekindle-control -- rekindle doctor" in notes()
    assert "helm test" not in notes()
    assert "helm test rekindle -n recoveries" in notes(test__image="training:1")
    assert "only observes" in notes(observe=True)
    assert "for a trial" in notes(temporal={"trial": {"enabled": True, "image": "temporal:1"}})
    assert "https://ui" in notes(temporal__ui="https://ui")


def test_the_definition_of_trainingjobs_is_kept() -> None:
    """The chart of CRDs has the definition of `deploy/crds`, which Helm does not delete with the release."""
    (found,) = objects({}, chart=CRDS_CHART)
    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found["metadata"].pop("labels") == {"app.kubernetes.io/part-of": "rekindle"}
    assert found == yaml.safe_load((ROOT / "deploy" / "crds" / "trainingjobs.rekindle.io.yaml").read_text())
