"""A real API server accepts the manifests of `deploy`."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from tests.kubernetes.world.manifests import OURS, PROCESSES, every_overlay, of_kind, on_the_page, template, workloads
from workers.other_controller import NAMESPACE, PART_OF, SERVICE

pytestmark = pytest.mark.timeout(600)  # the first one of a machine builds kubectl


ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


FLOW = ("PriorityLevelConfiguration", "FlowSchema")


def test_the_policy_of_the_page_closes_temporal(cluster: "Kubectl") -> None:
    """Only our own pods reach Temporal from other namespaces, and only its one port. The API server accepts the policy."""
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


class Kubectl:
    """Runs kubectl as an administrator of the test's API server."""

    def __init__(self, program: str, kubeconfig: Path) -> None:
        self._command = [program, f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, objects: list[Object] | None = None) -> str:
        """Returns the output of a command. `objects` are given to `-f -`."""
        done = self.attempt(*arguments, objects=objects)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *arguments: str, objects: list[Object] | None = None) -> subprocess.CompletedProcess[str]:
        given = yaml.safe_dump_all(objects) if objects else None
        return subprocess.run([*self._command, *arguments], input=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cluster(program: str, kubeconfig: Path, manifests: dict[str, list[Object]]) -> Iterator[Kubectl]:
    """Applies what must exist before pods can be judged: the namespaces, which stay, the priority and the rules of access."""
    run, objects = Kubectl(program, kubeconfig), manifests["standalone"]
    users = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cluster-system"}}
    first = [*of_kind(objects, "Namespace"), users]
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
    """Requests of each of our processes have a flow and a priority of their own."""
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
    ("watcher", "delete", "batch", "jobs", False),
    ("watcher", "patch", "coordination.k8s.io", "leases", False),
    ("control", "patch", "coordination.k8s.io", "leases", False),
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
    """Rights of an account in any namespace are those that the server's own authorizer states."""
    assert (
        await may(kubeconfig, account, {"verb": verb, "group": group, "resource": resource, "namespace": "training"}) is allowed
    )


async def test_a_clusterd_is_looked_for_by_its_name_only(cluster: Kubectl, kubeconfig: Path) -> None:
    """A process that starts may read a Service of that name, wherever we are installed ourselves, and no other."""
    for account in ("control", "watcher"):
        question = {"verb": "get", "resource": "services", "name": SERVICE, "namespace": NAMESPACE}
        assert await may(kubeconfig, account, question)
        assert not await may(kubeconfig, account, {**question, "name": "another"})


async def may(kubeconfig: Path, account: str, question: Object) -> bool:
    resource, _, part = question["resource"].partition("/")
    asked = {**question, "resource": resource, "subresource": part}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:rekindle-{account}", "resourceAttributes": asked}
    async with Api(kubeconfig) as api:
        answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(answer["status"]["allowed"])


def test_taking_over_keeps_the_address_of_the_service(cluster: Kubectl, manifests: dict[str, list[Object]]) -> None:
    """Running jobs know the Service by its IP address, which stays. However ClusterD's Service was created, ours has none of its
    selector, and the way back works too."""
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
