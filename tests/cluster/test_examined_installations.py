"""`rekindle doctor` on Kubernetes: what looks well and is not, and answers that no real API server can be made to give."""

import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api
from rekindle.model.examined import Health, Link
from rekindle.settings import Settings
from tests.fakes.scripted_api import ScriptedApi, scripted_api
from tests.support.charts import given, objects
from workers.examination.__main__ import examine

Object = dict[str, Any]

NAMESPACE = "mindx-dl"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ScriptedApi, Api]]:
    """An API server on which everybody may do everything."""
    async with scripted_api(tmp_path) as (scripted, api):
        scripted.answers["GET", "/version"] = 200, {"gitVersion": "v1.36.0"}
        scripted.answers["POST", REVIEWS] = 201, {"status": {"allowed": True}}
        yield scripted, api


async def links(api: Api, own: Settings | None = None) -> dict[str, Link]:
    return {link.name: link async for link in examine(api, NAMESPACE, own)}


def workload(process: str, **status: object) -> Object:
    """Returns a workload of the chart, as its controller describes one that is well."""
    kinds, name = ("Deployment", "StatefulSet"), f"rekindle-{process}"
    (found,) = [one for one in objects(given()) if one["kind"] in kinds and one["metadata"]["name"] == name]
    found["metadata"]["generation"] = 2
    well = {"observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}
    found["spec"]["replicas"], found["status"] = 2, {**well, **status}
    return found


def condition(kind: str, status: str, reason: str, message: str) -> list[Object]:
    return [{"type": kind, "status": status, "reason": reason, "message": message}]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"updatedReplicas": 0}, "2 of 2 pods are ready, 0 are of the latest revision: they start"),
        ({"observedGeneration": 1}, "2 of 2 pods are ready, 0 are of the latest revision: they start"),
        (
            {"conditions": condition("Serving", "False", "TemporalUnreachable", "Temporal does not answer")},
            "2 of 2 pods are ready: TemporalUnreachable: Temporal does not answer",
        ),
        (
            {"conditions": condition("Progressing", "False", "ProgressDeadlineExceeded", "it has timed out")},
            "2 of 2 pods are ready: ProgressDeadlineExceeded: it has timed out",
        ),
    ],
    ids=["upgrade that stands", "upgrade that nobody saw", "without Temporal", "too slow"],
)
@pytest.mark.parametrize("process", ["control", "gateway"])
async def test_ready_pods_are_not_enough(process: str, status: Object, words: str, server: tuple[ScriptedApi, Api]) -> None:
    """Pods of the revision before are ready while those of an upgrade crash, and a gateway is ready without Temporal."""
    scripted, api = server
    plural = {"control": "deployments", "gateway": "statefulsets"}[process]
    await scripted.put(f"{APPS}/{plural}", workload(process))
    assert (await links(api))[f"process {process}"].health is Health.OK
    await scripted.put(f"{APPS}/{plural}", workload(process, **status))
    found = (await links(api))[f"process {process}"]
    assert (found.health, found.words) == (Health.WARNING, words)


async def test_what_nobody_says_any_more_is_old(server: tuple[ScriptedApi, Api]) -> None:
    """A release before this one, to which was gone back, does not take the condition of the newer one back."""
    scripted, api = server
    (said,) = condition("Serving", "False", "NotStarted", "it may not")
    for time, health in ((datetime.now(UTC), Health.WARNING), (datetime.now(UTC) - timedelta(hours=1), Health.OK)):
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ")
        await scripted.put(f"{APPS}/deployments", workload("control", conditions=[{**said, "lastTransitionTime": moment}]))
        assert (await links(api))["process control"].health is health


@pytest.mark.parametrize(("process", "plural"), [("control", "deployments"), ("gateway", "statefulsets")])
async def test_a_process_that_was_scaled_to_zero_comes_with_a_command_of_kubectl(
    process: str, plural: str, server: tuple[ScriptedApi, Api]
) -> None:
    """kubectl needs the resource beside the name."""
    scripted, api = server
    thing = workload(process)
    thing["spec"]["replicas"] = 0
    await scripted.put(f"{APPS}/{plural}", thing)
    mend = (await links(api))[f"process {process}"].mend
    assert mend == f"kubectl -n mindx-dl scale {plural} rekindle-{process} --replicas=1"


def policy(name: str) -> Object:
    (found,) = [one for one in objects(given()) if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", name)]
    return found


@pytest.mark.parametrize(
    ("change", "health", "words"),
    [
        ({}, Health.OK, "in force"),
        ({"matchConstraints": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, Health.FAILED, "for some objects only"),
        ({"matchConstraints": {"excludeResourceRules": [{"resources": ["pods"]}]}}, Health.FAILED, "for some objects only"),
        ({"validations": [{"expression": "true"}]}, Health.WARNING, "not those of this release"),
        ({"matchConditions": [{"name": "none", "expression": "false"}]}, Health.WARNING, "not those of this release"),
    ],
    ids=["as shipped", "namespaces", "exceptions", "accepts all", "judges none"],
)
@pytest.mark.parametrize("name", ["rekindle-marks", "rekindle-priority"])
async def test_a_policy_that_was_made_weaker_is_found(
    name: str, change: Object, health: Health, words: str, server: tuple[ScriptedApi, Api]
) -> None:
    """A weaker policy is named, also where its binding is unchanged."""
    scripted, api = server
    thing = copy.deepcopy(policy(name))
    for key, value in change.items():
        thing["spec"][key] = {**thing["spec"].get(key, {}), **value} if isinstance(value, dict) else value
    await scripted.put(POLICIES, thing)
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    await scripted.put(f"{POLICIES.removesuffix('ies')}ybindings", binding)
    found = (await links(api))[f"policy {name}"]
    assert (found.health, words in found.words) == (health, True), found


@pytest.mark.parametrize("where", ["ConfigMap", "container", "own pod"])
async def test_rights_are_asked_for_in_the_namespaces_that_are_served(where: str, server: tuple[ScriptedApi, Api]) -> None:
    """The account of the control worker may not read the ConfigMap, and knows what is in it from its own variables."""
    scripted, api = server
    variables = {"REKINDLE_NAMESPACES": '["training"]', "REKINDLE_HEALTH_PORT": "8080"}
    thing = workload("control")
    if where == "container":
        thing["spec"]["template"]["spec"]["containers"][0]["env"] = [
            {"name": name, "value": value} for name, value in variables.items()
        ]
    await scripted.put(f"{APPS}/deployments", thing)
    for name, data in (
        ("rekindle-settings", variables if where == "ConfigMap" else {"REKINDLE_NAMESPACES": "[]"}),
        ("rekindle-temporal", {}),
    ):
        await scripted.put(f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": name}, "data": data})
        if where == "own pod":
            scripted.refused["GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"] = 403, "you may not"
            scripted.answers["GET", "/readyz"] = 200, {}
    scripted.answers["POST", REVIEWS] = 201, {"status": {"allowed": False}}
    found = await links(api, Settings(namespaces=("training",), health_port=8080) if where == "own pod" else None)
    assert "list pods in training" in found["rights of watcher"].words
    assert found["metrics"].health is Health.OK


@pytest.mark.parametrize("body", [[], "<html>", None, {"gitVersion": None, "items": []}, {}])
async def test_a_server_that_is_no_api_server_is_said(body: object, server: tuple[ScriptedApi, Api]) -> None:
    """A proxy or a portal answers everything with 200."""
    scripted, api = server
    scripted.answers["GET", "/version"] = 200, body  # type: ignore[assignment]
    found = await links(api)
    if body != {"gitVersion": None, "items": []}:
        assert list(found) == ["Kubernetes"]
        assert found["Kubernetes"].health is Health.FAILED


@pytest.mark.parametrize("code", [403, 404, 409, 429, 500])
async def test_a_server_that_refuses_everything_ends_no_examination(code: int, server: tuple[ScriptedApi, Api]) -> None:
    """Words that are long, or of several lines, are one line of what a terminal can show."""
    scripted, api = server
    words = "no\nok      Kubernetes: all is well\r\x1b[2J" + "x" * 100_000
    for path in (
        f"{APPS}/deployments/rekindle-control",
        f"{APPS}/statefulsets/rekindle-gateway",
        "/api/v1/namespaces/mindx-dl/pods",
    ):
        scripted.refused["GET", path] = code, words
    found = await links(api)
    assert len(found) > 10
    for link in found.values():
        assert "\n" not in link.words
        assert len(link.model_dump_json()) < 30_000


async def test_the_server_that_was_examined_is_named(tmp_path: Path, server: tuple[ScriptedApi, Api]) -> None:
    """A kubeconfig has several contexts, of which one is current. A password in its address is not shown."""
    _, api = server
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    address = config["clusters"][0]["cluster"]["server"]
    assert f"answers at {address}," in (await links(api))["Kubernetes"].words
    config["clusters"][0]["cluster"]["server"] = address.replace("//", "//me:secret@")
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    async with Api(tmp_path / "kubeconfig") as other:
        assert await other.address() == address


SERVICE = "clusterd-grpc-svc"


def endpoint(pod: str, *addresses: str) -> Object:
    return {"addresses": list(addresses), "conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": pod}}


@pytest.mark.parametrize(
    ("endpoints", "health", "words"),
    [
        (
            [endpoint("rekindle-gateway-0", "10.0.0.1"), endpoint("rekindle-gateway-0", "fd00::1")],
            Health.OK,
            "leads to 1 ready gateways (rekindle-gateway-0)",
        ),
        (
            [endpoint("rekindle-gateway-0", "10.0.0.1"), endpoint("clusterd-5d9f-x", "10.0.0.2")],
            Health.FAILED,
            "leads to pods that are no gateways: clusterd-5d9f-x",
        ),
    ],
    ids=["two families of addresses", "another controller"],
)
async def test_the_pods_behind_the_service_are_told_apart(
    endpoints: list[Object], health: Health, words: str, server: tuple[ScriptedApi, Api]
) -> None:
    """A Service that was taken over may still select the pods of the controller before."""
    scripted, api = server
    labels = {"app.kubernetes.io/part-of": "rekindle"}
    service = {"metadata": {"name": SERVICE, "labels": labels}, "spec": {"ports": [{"port": 8899}]}}
    await scripted.put(f"/api/v1/namespaces/{NAMESPACE}/services", service)
    named = {"name": "a-slice", "labels": {"kubernetes.io/service-name": SERVICE}}
    await scripted.put(
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", {"metadata": named, "endpoints": endpoints}
    )
    found = (await links(api))["service of the gateways"]
    assert (found.health, words in found.words) == (health, True), found


async def test_namespaces_that_were_not_asked_about_are_counted(server: tuple[ScriptedApi, Api]) -> None:
    """The doctor asks about three namespaces, and says how many it did not ask about."""
    _, api = server
    found = await links(api, Settings(namespaces=tuple(f"team-{number}" for number in range(10))))
    assert found["rights of watcher"].words.endswith("; those in 7 of its 10 namespaces were not asked for")


@pytest.mark.parametrize("webhooks", [[None], [{"name": "a"}], [{"clientConfig": 5}], {"a": None}])
async def test_an_odd_configuration_ends_no_examination(webhooks: object, server: tuple[ScriptedApi, Api]) -> None:
    """The links that follow it are examined."""
    scripted, api = server
    configuration = {"kind": "any", "metadata": {"name": "rekindle-webhook"}, "webhooks": webhooks}
    await scripted.put("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration)
    found = await links(api)
    assert found["webhook configurations"].health is Health.UNKNOWN
    assert list(found)[-1] == "other installations"


@pytest.mark.parametrize("mounted", ["", "rekindle-webhook-tls"])
async def test_the_certificate_that_the_webhook_serves_is_examined(mounted: str, server: tuple[ScriptedApi, Api]) -> None:
    """cert-manager leaves its Secret behind, and the webhook serves with its own one afterwards."""
    scripted, api = server
    volumes = [{"name": "certificates", "secret": {"secretName": mounted}}] if mounted else []
    deployment = {"metadata": {"name": "rekindle-webhook"}, "spec": {"template": {"spec": {"volumes": volumes}}}}
    await scripted.put(f"{APPS}/deployments", deployment)
    one = {"name": "one.rekindle.io", "clientConfig": {"service": {"namespace": NAMESPACE}, "caBundle": ""}}
    for plural in ("mutating", "validating"):
        configuration = {"kind": plural, "metadata": {"name": "rekindle-webhook"}, "webhooks": [one]}
        await scripted.put(f"/apis/admissionregistration.k8s.io/v1/{plural}webhookconfigurations", configuration)
    for name in ("rekindle-webhook", "rekindle-webhook-tls"):
        scripted.refused["GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"] = 404, "not found"
    found = (await links(api))["webhook certificate"]
    assert (found.health, found.words) == (Health.FAILED, f"Secret {mounted or 'rekindle-webhook'} is missing")
