"""A real API server accepts what the charts make, and Helm installs, upgrades and removes them on it."""

import json
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from threading import Thread

import pytest
import yaml
from helm_python import Chart, Config, HelmError

from activities.clusters.kubernetes.pod_objects import STANDBY_CLASS
from tests.kubernetes.test_deployed import Kubectl
from tests.kubernetes.world.manifests import named, rendered, template
from tests.support.charts import CHART, CRDS_CHART, Name, Object, given, name_of, names, objects

pytestmark = pytest.mark.timeout(600)  # the first one of a machine builds kubectl

PLACES = ("mindx-dl", "cluster-system", "training", "recoveries")

OF_OTHERS = {"monitoring.coreos.com", "keda.sh", "cert-manager.io"}
"""Groups whose definitions are not in the tests' cluster."""

FILES: dict[str, tuple[Object, str]] = {
    "default": (given(), "mindx-dl"),
    "everything": (
        given(
            namespaces=["training"],
            rules={"set": "own", "own": "spec: {}", "reads": ["nvidia", "ascend"]},
            contractWords=True,
            temporal__tls__secretName="certificates",
            control__tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            control__nodeSelector={"pool": "system"},
            control__affinity={"nodeAffinity": {}},
            control__env=[{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            image={"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
            tracing__endpoint="https://collector",
            networkPolicy__extraPorts=[9000],
            dashboards__enabled=True,
            podMonitor__enabled=True,
            prometheusRule__enabled=True,
            control__autoscaling__enabled=True,
            test__image="training:1",
        ),
        "mindx-dl",
    ),
    "in namespaces": (given(namespaces=["training"], rbac__scope="namespaces", contractWords=True), "recoveries"),
    "trial": (given(temporal={"trial": {"enabled": True, "image": "temporal:1"}}), "mindx-dl"),
    "webhook": (given(webhook={"enabled": True, "failClosed": True}), "recoveries"),
    "webhook by cert-manager": (given(webhook={"enabled": True, "certManager": {"enabled": True}}), "mindx-dl"),
    "observe": (given(observe=True, rules__set="nvidia", temporal__apiKey__secretName="key"), "mindx-dl"),
    "take over": (given(takeOver=True, service__name="rekindle", rules__set="ascend"), "mindx-dl"),
}

every_file = pytest.mark.parametrize("name", FILES)


@pytest.fixture(scope="module")
def cluster(program: str, kubeconfig: Path) -> Iterator[Kubectl]:
    """Has the namespaces that the values name, and the priority of our pods."""
    run = Kubectl(program, kubeconfig)
    run("apply", "--server-side", "--force-conflicts", "-f", "-", objects=[_namespace(name) for name in PLACES])
    first = [one for one in objects(given()) if one["kind"] in ("PriorityClass", "ServiceAccount")]
    run("apply", "--server-side", "--force-conflicts", "-f", "-", objects=first)
    yield run
    run("delete", "--ignore-not-found", "--wait=false", "namespace", "training", "recoveries")
    run("delete", "--ignore-not-found", "priorityclass", STANDBY_CLASS)


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


@every_file
def test_the_server_takes_every_object_of_a_values_file(name: str, cluster: Kubectl) -> None:
    """Objects pass the API server's own checks, unknown fields included, by a dry run."""
    values, namespace = FILES[name]
    found = [one for one in objects(values, namespace) if one["apiVersion"].split("/")[0] not in OF_OTHERS]
    said = cluster("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", objects=found)
    assert said.count("serverside-applied (server dry run)") == len(found), said


@every_file
def test_pods_of_a_values_file_fit_the_standard_restricted(name: str, cluster: Kubectl) -> None:
    """The server's own admission lets the pods into a namespace that enforces it, those of the trial and of the test too."""
    values, namespace = FILES[name]
    found = objects(values, namespace)
    pods = [one for one in found if one["kind"] == "Pod"]
    pods += [as_pod(one) for one in found if one["kind"] in ("Deployment", "StatefulSet")]
    enforcing = _namespace("restricted")
    enforcing["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster("apply", "--server-side", "-f", "-", objects=[enforcing])
    for pod in pods:
        spec = {key: value for key, value in pod["spec"].items() if key not in ("serviceAccountName", "priorityClassName")}
        bare = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod["metadata"]["name"], "namespace": "restricted"},
            "spec": spec,
        }
        assert "created (server dry run)" in cluster("create", "--dry-run=server", "-f", "-", objects=[bare])


BY_KUSTOMIZE: tuple[tuple[Object, tuple[str, ...]], ...] = (
    ({"enabled": True}, ("webhook",)),
    ({"enabled": True, "certManager": {"enabled": True}}, ("webhook", "webhook/cert-manager")),
    ({"enabled": True, "failClosed": True}, ("webhook", "webhook/fail-closed")),
)


@pytest.mark.parametrize(("webhook", "components"), BY_KUSTOMIZE, ids=[one[-1] for _, one in BY_KUSTOMIZE])
def test_components_of_the_webhook_make_what_the_chart_makes(
    webhook: Object, components: tuple[str, ...], program: str, deploy: Path
) -> None:
    """Renders both for another namespace than the default one, so that no place of its name is forgotten."""
    overlay = deploy / components[-1].replace("/", "-")
    overlay.mkdir()
    own = {
        "name": "rekindle-settings",
        "namespace": "mindx-dl",
        "behavior": "merge",
        "literals": ["REKINDLE_NAMESPACE=recoveries"],
    }
    written = {
        "resources": ["../overlays/standalone"],
        "components": [f"../components/{name}" for name in (*components, "namespace")],
        "configMapGenerator": [own],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(written))
    by_helm = objects(given(webhook=webhook), "recoveries")
    assert of_webhook(by_helm) == of_webhook(rendered(program, overlay))


def of_webhook(found: list[Object]) -> dict[Name, Object]:
    """Returns the objects of the webhook, without what Helm and kustomize do in their own ways when a setting changes."""
    chosen = {name_of(one): one for one in found if "webhook" in one["metadata"]["name"]}
    (deployment,) = (one for one in chosen.values() if one["kind"] == "Deployment")
    template(deployment)["metadata"].pop("annotations", None)
    spec = template(deployment)["spec"]
    del spec["containers"][0]["envFrom"]
    spec["volumes"].sort(key=itemgetter("name"))
    for part in ("env", "volumeMounts"):
        spec["containers"][0][part].sort(key=itemgetter("name"))
    return chosen


def as_pod(one: Object) -> Object:
    """Returns the pod that a controller would make, with a volume in the place of each claim."""
    spec = template(one)["spec"]
    claims = [{"name": claim["metadata"]["name"], "emptyDir": {}} for claim in one["spec"].get("volumeClaimTemplates", ())]
    return {"metadata": one["metadata"], "spec": {**spec, "volumes": [*spec["volumes"], *claims]}}


OWN = given(
    namespaces=["training"],
    rbac__scope="namespaces",
    shared={"priorityClasses": False, "standbyPriorityClass": False, "marks": False, "trainingJobRoles": False},
    control__nodeSelector={"nowhere": "true"},
    gateway__nodeSelector={"nowhere": "true"},
    watcher__nodeSelector={"nowhere": "true"},
    operator__nodeSelector={"nowhere": "true"},
)
"""Values of a release beside that of the tests' cluster, whose pods find no node: their processes would look for Temporal."""

BESIDE = {**OWN, "besideOthers": True}


def helm(kubeconfig: Path, namespace: str) -> Config:
    return Config(kubeconfig_path=kubeconfig, namespace=namespace)


def everything(cluster: Kubectl) -> set[tuple[str, str, str]]:
    """Returns all objects that a release may make, by kind, namespace and name."""
    kinds = ",".join(
        (
            "clusterroles,clusterrolebindings,roles,rolebindings,flowschemas,prioritylevelconfigurations,priorityclasses",
            "validatingadmissionpolicies,validatingadmissionpolicybindings,networkpolicies,poddisruptionbudgets",
            "deployments,statefulsets,services,configmaps,secrets,serviceaccounts,leases,customresourcedefinitions",
        )
    )
    found = json.loads(cluster("get", kinds, "--all-namespaces", "-o", "json"))["items"]
    others = ("test-", "world-")  # namespaces of other tests, which go away
    own = (one for one in found if not one["metadata"].get("namespace", "").startswith(others))
    return {name_of(one) for one in own if "kube-root-ca" not in one["metadata"]["name"]}


def test_a_release_is_installed_upgraded_rolled_back_and_removed(cluster: Kubectl, kubeconfig: Path) -> None:
    """What Helm installs is what the chart renders. An upgrade changes the pods, a rollback changes them back, and the removal
    leaves nothing."""
    before = everything(cluster)
    with helm(kubeconfig, "recoveries") as release:
        release.install(CHART, "rekindle", BESIDE)
        made = everything(cluster) - before
        rendered = names(objects(OWN, "recoveries"))
        assert rendered <= made
        assert {name for kind, _, name in made - rendered if kind != "Secret"} == set(), "the Secrets are Helm's own record"
        first = _hash(cluster)
        release.upgrade(CHART, "rekindle", {**BESIDE, "log": {"level": "DEBUG"}, "service": {"name": "rekindle"}})
        assert _hash(cluster) != first
        release.rollback("rekindle")
        assert _hash(cluster) == first
        release.uninstall("rekindle", wait="legacy")
    assert everything(cluster) == before


def test_a_service_of_clusterd_stays_when_we_only_observe_and_when_we_go(cluster: Kubectl, kubeconfig: Path) -> None:
    """Helm keeps it because of `service.keep`, both when an upgrade leaves it out and when the release is removed."""
    values = {**BESIDE, "service": {"keep": True}}

    def address() -> str:
        return cluster("-n", "recoveries", "get", "service", "clusterd-grpc-svc", "-o", "jsonpath={.spec.clusterIP}")

    with helm(kubeconfig, "recoveries") as release:
        release.install(CHART, "rekindle", values)
        before = address()
        release.upgrade(CHART, "rekindle", {**values, "observe": True})
        assert address() == before
        release.uninstall("rekindle", wait="legacy")
        assert address() == before
        release.install(CHART, "rekindle", values)
        release.uninstall("rekindle", wait="legacy")
    assert address() == before
    cluster("-n", "recoveries", "delete", "service", "clusterd-grpc-svc")


def test_an_upgrade_leaves_what_the_webhook_has_written(cluster: Kubectl, kubeconfig: Path) -> None:
    """The webhook writes into a Secret that the chart makes empty, and into configurations of the chart."""
    values = {**BESIDE, "webhook": {"enabled": True, "nodeSelector": {"nowhere": "true"}}}
    bundle = b64encode(b"an authority").decode()
    configuration = ("mutatingwebhookconfiguration", "rekindle-webhook")

    def written() -> tuple[str, str]:
        secret = cluster("-n", "recoveries", "get", "secret", "rekindle-webhook", "-o", "jsonpath={.data.key}")
        return secret, cluster("get", *configuration, "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}")

    with helm(kubeconfig, "recoveries") as release:
        release.install(CHART, "rekindle", values)
        data = json.dumps({"data": {"key": bundle}})
        cluster("-n", "recoveries", "patch", "secret", "rekindle-webhook", "--type=merge", "-p", data)
        authority = json.dumps([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}])
        cluster("patch", *configuration, "--type=json", "-p", authority)
        assert written() == (bundle, bundle)
        release.upgrade(CHART, "rekindle", {**values, "log": {"level": "DEBUG"}})
        assert written() == (bundle, bundle)
        release.rollback("rekindle")
        assert written() == (bundle, bundle)
        release.uninstall("rekindle", wait="legacy")


def _hash(cluster: Kubectl) -> str:
    path = "jsonpath={.spec.template.metadata.annotations.rekindle\\.io/settings}"
    return cluster("-n", "recoveries", "get", "deployment", "rekindle-watcher", "-o", path)


BY_A_TENANT: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "rekindle-training-control", "namespace": "training"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "training"}],
}
"""RoleBinding that looks like one of an installation. Whoever administers a namespace can make it."""


def test_a_second_installation_for_the_same_jobs_is_refused(cluster: Kubectl, kubeconfig: Path) -> None:
    """The chart sees an installation that serves all namespaces, one that serves the same namespace, and one of another name in
    its own namespace. `besideOthers` lets it through."""
    found = [one for one in objects(given()) if name_of(one) == ("ClusterRoleBinding", "", "rekindle-control")]
    cluster("apply", "--server-side", "--force-conflicts", "-f", "-", objects=found)
    with helm(kubeconfig, "recoveries") as release:
        for values in (given(), given(namespaces=["training"], rbac__scope="namespaces")):
            with pytest.raises(HelmError, match="namespace mindx-dl: an installation that serves all namespaces is there"):
                release.install(CHART, "rekindle", values, dry_run="server")
        assert release.install(CHART, "rekindle", BESIDE, dry_run="server")
    cluster("delete", "clusterrolebinding", "rekindle-control")
    with helm(kubeconfig, "recoveries") as release:
        cluster("apply", "-f", "-", objects=[BY_A_TENANT])
        release.install(CHART, "rekindle", OWN)
        try:
            with pytest.raises(HelmError, match="namespace recoveries: the release rekindle is installed here"):
                release.install(CHART, "another", OWN, dry_run="server")
            with helm(kubeconfig, "mindx-dl") as second:
                for values in (given(), OWN):
                    with pytest.raises(HelmError, match="namespace training: the installation in recoveries serves it"):
                        second.install(CHART, "second", values, dry_run="server")
        finally:
            release.uninstall("rekindle", wait="legacy")
            cluster("delete", "-f", "-", objects=[BY_A_TENANT])
            cluster("apply", "--server-side", "-f", "-", objects=found)


def test_objects_that_a_cluster_has_once_are_named(cluster: Kubectl, kubeconfig: Path) -> None:
    """A second release is told which of them another release has, and how to leave them to it."""
    notes = ("meta.helm.sh/release-name=first", "meta.helm.sh/release-namespace=elsewhere")
    cluster("annotate", "priorityclass", "rekindle", *notes)
    try:
        with helm(kubeconfig, "recoveries") as release:
            values = {**BESIDE, "shared": {**BESIDE["shared"], "priorityClasses": True}}
            with pytest.raises(
                HelmError, match=r"values.shared.priorityClasses: .* of a release in namespace elsewhere; use false"
            ):
                release.install(CHART, "rekindle", values, dry_run="server")
            assert release.install(CHART, "rekindle", BESIDE, dry_run="server")
    finally:
        cluster("annotate", "priorityclass", "rekindle", *(f"{note.split('=')[0]}-" for note in notes))


def test_what_an_installation_needs_or_would_take_is_seen_before(cluster: Kubectl, kubeconfig: Path) -> None:
    """Namespaces that are not there, and a Service of others that would be deleted with the release, are named."""
    cluster("-n", "recoveries", "create", "service", "clusterip", "clusterd-grpc-svc", "--tcp=8899:8899")
    broken = {**BESIDE, "namespaces": ["training", "trainng"]}
    try:
        with helm(kubeconfig, "recoveries") as release:
            with pytest.raises(HelmError) as refused:
                release.install(CHART, "rekindle", broken, dry_run="server")
            assert "values.namespaces: there is no namespace trainng in this cluster" in str(refused.value)
            assert "values.service.keep: the Service clusterd-grpc-svc of others is there" in str(refused.value)
            with Chart.load(CHART) as chart:
                assert release.render(chart, {**BESIDE, "service": {"keep": True}}, namespace="recoveries")
    finally:
        cluster("-n", "recoveries", "delete", "service", "clusterd-grpc-svc")


def test_the_volume_of_a_trial_is_not_changed(cluster: Kubectl, kubeconfig: Path) -> None:
    """The server takes no other size, and who deletes the StatefulSet for that deletes the data with it."""
    trial = {"enabled": True, "image": "temporal:1", "storage": {"size": "5Gi"}}
    stateful = named(objects(given(temporal={"trial": trial}), "recoveries"), "StatefulSet", "rekindle-temporal")
    stateful["spec"]["replicas"] = 0
    cluster("apply", "--server-side", "-f", "-", objects=[stateful])
    try:
        with helm(kubeconfig, "recoveries") as release:
            for storage, name in (({"size": "6Gi"}, "size"), ({"size": "5120Mi", "className": "fast"}, "className")):
                changed = {**BESIDE, "temporal": {"trial": {**trial, "storage": storage}}}
                with Chart.load(CHART) as chart, pytest.raises(HelmError) as refused:
                    release.render(chart, changed, namespace="recoveries")
                (told,) = (line for line in str(refused.value).splitlines() if line.startswith("values."))
                assert told.startswith(f"values.temporal.trial.storage.{name}: cannot be changed")
    finally:
        cluster("-n", "recoveries", "delete", "statefulset", "rekindle-temporal")


def test_a_definition_stays_when_its_release_is_removed(cluster: Kubectl, kubeconfig: Path) -> None:
    """Jobs outlive the release of their definition."""
    cluster("label", "--overwrite", "crd", "trainingjobs.rekindle.io", "app.kubernetes.io/managed-by=Helm")
    cluster(
        "annotate",
        "--overwrite",
        "crd",
        "trainingjobs.rekindle.io",
        "meta.helm.sh/release-name=rekindle-crds",
        "meta.helm.sh/release-namespace=recoveries",
    )
    with helm(kubeconfig, "recoveries") as release:
        release.install(CRDS_CHART, "rekindle-crds", {})
        release.uninstall("rekindle-crds", wait="legacy")
    assert "trainingjobs.rekindle.io" in cluster("get", "crd", "trainingjobs.rekindle.io", "-o", "name")


class OldServer(BaseHTTPRequestHandler):
    """API server of Kubernetes 1.29, as far as Helm asks for its version."""

    def do_GET(self) -> None:
        version = {"major": "1", "minor": "29", "gitVersion": "v1.29.9"}
        body = json.dumps(version if self.path.startswith("/version") else {"kind": "APIGroupList", "groups": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def old_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OldServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_cluster_that_is_too_old_is_named(old_server: str) -> None:
    """The message has the version that is there and those that are accepted."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "old",
        "clusters": [{"name": "old", "cluster": {"server": old_server}}],
        "contexts": [{"name": "old", "context": {"cluster": "old", "user": "old"}}],
        "users": [{"name": "old", "user": {}}],
    }
    with Config(kubeconfig_content=yaml.safe_dump(config), namespace="mindx-dl") as release, pytest.raises(HelmError) as refused:
        release.install(CHART, "rekindle", given(), dry_run="server")
    assert "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29.9" in str(refused.value)
