"""`rekindle doctor` examines each link of an installation on Kubernetes, and says how to mend the one that is broken."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.leftovers import LEASES
from activities.clusters.kubernetes.pod_objects import STANDBY_CLASS
from rekindle.cli.doctor import on_kubernetes
from rekindle.model.examined import Health, Link
from simulators.kubernetes.installation import ADMISSION, NAMESPACE, RBAC, install, kubeconfig_of
from tests.fakes.controller import apply_crds
from tests.kubernetes.world.admission import ACCOUNT, installed
from tests.kubernetes.world.control_plane import Namespace, endpoint_of
from tests.support.charts import given, objects
from workers.examination.__main__ import examine
from workers.webhook.certificate_sources import SharedSecret
from workers.webhook.tls import ServerTls

pytestmark = pytest.mark.timeout(240)

APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
CORE = f"/api/v1/namespaces/{NAMESPACE}"


async def links(api: Api) -> dict[str, Link]:
    return {link.name: link async for link in examine(api, NAMESPACE)}


async def replaced(api: Api, path: str, thing: Object) -> None:
    """Creates an object in the place of the one of its name, if there is one."""
    await removed(api, path, thing["metadata"]["name"])
    await api.create(path, thing)


async def removed(api: Api, path: str, name: str) -> None:
    for one in (await api.list(path, fieldSelector=f"metadata.name={name}")).items:
        await api.delete(f"{path}/{name}", one["metadata"]["uid"])


async def no_other_lives(api: Api) -> None:
    """Deletes the Leases of other tests."""
    for lease in (await api.list(LEASES, labelSelector="app.kubernetes.io/part-of=rekindle")).items:
        where = f"/apis/coordination.k8s.io/v1/namespaces/{lease['metadata']['namespace']}/leases/{lease['metadata']['name']}"
        await api.delete(where, lease["metadata"]["uid"])


@pytest.fixture
async def installation(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Api]:
    """Installs what needs no pods, and removes what other tests do not expect."""
    api = namespace.api
    await apply_crds(api)
    await install(api, endpoint_of(kubeconfig), tmp_path)
    await no_other_lives(api)
    yield api
    for path, name in ((f"{APPS}/deployments", "rekindle-control"), (f"{CORE}/configmaps", "rekindle-settings")):
        await removed(api, path, name)


def control(*command: str, **pod: object) -> Object:
    """Returns the control worker's Deployment of the chart, with another command."""
    (found,) = [one for one in objects(given()) if one["kind"] == "Deployment" and one["metadata"]["name"] == "rekindle-control"]
    found["spec"]["replicas"] = 1
    found["spec"]["template"]["spec"].update(pod)
    found["spec"]["template"]["spec"]["containers"][0]["command"] = list(command)
    return found


async def test_an_installation_without_processes_is_seen_through(installation: Api) -> None:
    """Parts that need no process are well: rights of each account, kinds, priority and policies. The rest says how to mend it."""
    found = await links(installation)
    well = [name for name, link in found.items() if link.health is Health.OK]
    assert well == [
        "Kubernetes",
        "definition of TrainingJob",
        "kinds of jobs",
        *(f"rights of {account}" for account in ("control", "gateway", "watcher", "operator")),
        "metrics",
        "priority of our pods",
        "policy rekindle-marks",
        "policy rekindle-priority",
        "other installations",
    ], found
    assert found["process control"].words == "rekindle-control is not in namespace mindx-dl"
    assert found["service of the gateways"].health is Health.FAILED
    assert found["lease of the installation"].health is Health.FAILED
    assert all(link.mend for name, link in found.items() if name not in well)


async def test_a_process_that_ends_is_shown_with_its_last_words(installation: Api) -> None:
    """The settings of an installation are read from the ConfigMaps that its Deployment names."""
    api, words = installation, "error: Temporal does not answer at temporal.example.com:7233"
    for config in (one for one in objects(given(namespaces=["training"], observe=True)) if one["kind"] == "ConfigMap"):
        await replaced(api, f"{CORE}/configmaps", config)
    await replaced(api, f"{APPS}/deployments", control("sh", "-c", f"echo '{words}'; exit 1"))
    while "CrashLoopBackOff" not in (link := (await links(api))["process control"]).words:
        pass
    assert link.health is Health.FAILED
    assert f"CrashLoopBackOff: ended with code 1: {words}" in link.words
    assert link.mend.startswith("kubectl -n mindx-dl logs rekindle-control-")
    found = await links(api)
    assert found["service of the gateways"].words == "none, as this installation only observes"
    assert found["rights of control"].health is Health.OK


async def test_a_pod_without_a_node_is_named(installation: Api) -> None:
    """The scheduler's own words say why."""
    await replaced(installation, f"{APPS}/deployments", control("true", nodeSelector={"pool": "none"}))
    while "has no node" not in (link := (await links(installation))["process control"]).words:
        pass
    assert "didn't match Pod's node affinity/selector" in link.words
    assert "nodeSelector" in link.mend


async def test_a_lease_that_is_renewed_is_well(installation: Api) -> None:
    """Another installation that serves the same jobs is named with how to part them."""

    async def identify() -> str:
        return "of the test of doctor"

    await Claims(installation, NAMESPACE, identify).renew()
    await Claims(installation, "default", identify).renew()
    found = await links(installation)
    await no_other_lives(installation)
    assert found["lease of the installation"].health is Health.OK
    assert found["other installations"].health is Health.WARNING
    assert found["other installations"].words.startswith("that in default serves all namespaces")


@pytest.mark.parametrize(
    ("path", "name", "change", "link", "words"),
    [
        (f"{RBAC}/clusterroles", "rekindle-gateway", {"rules": []}, "rights of gateway", "may not"),
        (
            f"{ADMISSION}/validatingadmissionpolicybindings",
            "rekindle-marks",
            {"spec": {"validationActions": ["Audit"]}},
            "policy rekindle-marks",
            "its binding denies nothing: any tenant may say",
        ),
    ],
    ids=["rights", "policy"],
)
async def test_what_was_changed_by_hand_is_found(
    installation: Api, path: str, name: str, change: Object, link: str, words: str
) -> None:
    """The link says what follows, and which command brings it back."""
    before = await installation.get(f"{path}/{name}")
    await installation.patch(f"{path}/{name}", change)
    try:
        found = (await links(installation))[link]
    finally:
        await installation.patch(f"{path}/{name}", {key: before[key] for key in change})
    assert (found.health, words in found.words) == (Health.FAILED, True), found
    assert "helm upgrade" in found.mend


async def test_the_account_of_a_pod_sees_its_own_rights(installation: Api, tmp_path: Path) -> None:
    """Objects that the account may not read are not examined, and the link says who may."""
    async with Api(kubeconfig_of("control", tmp_path)) as own:
        found = await links(own)
    assert found["Kubernetes"].health is Health.OK
    assert found["definition of TrainingJob"].words == "version v1 is served"
    assert found["rights of control"].health is Health.OK
    assert found["process control"].words == "rekindle-control is not in namespace mindx-dl"
    for name in ("rights of gateway", "process gateway", "policy rekindle-marks"):
        assert found[name].health is Health.UNKNOWN, name
        assert "--kubeconfig" in found[name].mend


async def test_a_certificate_that_the_api_server_does_not_trust_is_found(
    installation: Api, kubeconfig: Path, tmp_path: Path
) -> None:
    """Both configurations are there, and jobs pass while the webhook is away."""
    deployment = {**control("true"), "metadata": {"name": ACCOUNT}}
    deployment["spec"]["replicas"] = 0
    async with installed(installation, endpoint_of(kubeconfig), tmp_path):
        await replaced(installation, f"{APPS}/deployments", deployment)
        try:
            before = await links(installation)
            await SharedSecret(installation, NAMESPACE, ServerTls()).look()
            after = await links(installation)
        finally:
            await removed(installation, f"{APPS}/deployments", ACCOUNT)
    assert before["webhook configurations"].words == "both are there; jobs pass while the webhook is away"
    assert before["webhook certificate"].words == "mutate.rekindle.io: there is no certificate yet"
    assert after["webhook certificate"].health is Health.OK
    assert "trusted by the API server, valid until" in after["webhook certificate"].words


# ---- the command


@pytest.mark.costly
async def test_the_command_examines_a_cluster_that_a_kubeconfig_names(installation: Api, kubeconfig: Path) -> None:
    """Links come from a process of their own, which loads the client of Kubernetes."""
    found = {link.name: link async for link in on_kubernetes(kubeconfig, NAMESPACE)}
    assert found["Kubernetes"].health is Health.OK
    assert found["process watcher"].health is Health.FAILED
    assert STANDBY_CLASS in found["priority of standbys"].words
