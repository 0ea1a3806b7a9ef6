"""The admission webhook under a real API server: jobs get their variables, wrong ones are refused, and it may be away."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kinds import KINDS
from rekindle.errors import ClusterError, ClusterUnavailable, Forbidden, Invalid, NotFound
from rekindle.policy.parameters.kinds.table import KINDS as ROWS
from rekindle.settings import Settings
from simulators.kubernetes.installation import NAMESPACE, install, kubeconfig_of
from tests.fakes.controller import apply_crds
from tests.kubernetes.test_doctor import removed, replaced
from tests.kubernetes.world.admission import ACCOUNT, CONFIGURATIONS, FOLDER, OF_KIND, Installed, installed, variables
from tests.kubernetes.world.control_plane import Namespace, endpoint_of
from tests.policy.broken_jobs import FOLDER as FILES
from tests.support.admission import Clock, job
from tests.support.charts import given, name_of, objects
from workers.own_workload import own_workload
from workers.webhook.certificate_sources import SharedSecret
from workers.webhook.own_certificates import Certificates, certificates_in
from workers.webhook.tls import ServerTls

pytestmark = pytest.mark.timeout(280)
INJECTED = {"PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE", "HIGH_AVAILABILITY"}
WRONG = "retry, recover"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SECRET = f"{OF_KIND['Secret']}/{ACCOUNT}"


@asynccontextmanager
async def heeded(found: Installed, namespace: Namespace, directory: Path, **variables: object) -> AsyncIterator[None]:
    """Runs the webhook until the API server asks it, which takes a moment after its configuration was written."""
    async with found.running(directory, **variables) as address:
        assert address == f"webhook {found.address}:{found.port}"
        async with asyncio.timeout(60):
            while await is_admitted(namespace, job(WRONG, "probe")):
                await asyncio.sleep(0.05)
        yield


async def is_admitted(namespace: Namespace, body: Object) -> bool:
    try:
        await namespace.api.create(namespace.path("jobs"), body, dry_run=True)
    except (Invalid, ClusterUnavailable):
        return False
    return True


@pytest.fixture
async def found(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Installed]:
    await apply_crds(namespace.api)
    await install(namespace.api, endpoint_of(kubeconfig), tmp_path)
    async with installed(namespace.api, endpoint_of(kubeconfig), tmp_path) as found:
        yield found


async def test_a_job_of_each_kind_gets_its_variables_or_is_refused(
    found: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    """A wrong one is refused with its field and what to write, also when it is changed. Jobs of others pass."""
    async with heeded(found, namespace, tmp_path):
        for file in sorted((FILES / "kinds").glob("*.yaml")):
            body = yaml.safe_load(file.read_text())
            path = path_of(body, namespace)
            if path is None:
                continue  # Volcano's kind is not installed here
            assert variables(body) == set()
            if "completions" in body["spec"]:
                body["spec"]["suspend"] = True  # its controller is here
            created = await namespace.api.create(path, body)
            assert variables(created) == INJECTED, file.name
            await namespace.api.patch(f"{path}/{body['metadata']['name']}", {"metadata": {"annotations": {"mine": "1"}}})
            body["metadata"]["annotations"] = {"recover-strategy": WRONG}
            with pytest.raises(Invalid, match=r'admission webhook "validate.rekindle.io" denied the request') as refused:
                await namespace.api.create(path, body | {"metadata": body["metadata"] | {"name": "wrong"}})
            assert "metadata.annotations.recover-strategy: ' recover' has a blank" in str(refused.value)
            assert str(refused.value).endswith('; fix: recover-strategy: "retry,recover"')
        with pytest.raises(Invalid, match="wait-reschedule-timeout"):
            await namespace.api.patch(
                namespace.path("jobs", "resnet"), {"metadata": {"annotations": {"wait-reschedule-timeout": "5"}}}
            )
        other = job(WRONG, "web")
        other["metadata"]["annotations"] = {}
        assert variables(await namespace.api.create(namespace.path("jobs"), other)) == set()


def path_of(body: Object, namespace: Namespace) -> str | None:
    return next(
        (kind.path(namespace.name) for kind in KINDS if kind.api_version == body["apiVersion"] and kind.name == body["kind"]),
        None,
    )


async def test_a_wrong_job_that_is_there_can_still_be_changed_and_deleted(
    found: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    """The webhook was away when it was created. A finalizer, a status and the end of its suspension are no reason to refuse."""
    path = namespace.path("jobs", "gpt")
    await namespace.api.create(namespace.path("jobs"), job(WRONG))
    async with heeded(found, namespace, tmp_path):
        await namespace.api.patch(path, {"metadata": {"finalizers": ["example.com/wait"]}})
        await namespace.api.patch(path, {"spec": {"suspend": False}})
        await namespace.api.patch(f"{path}/status", {"status": {"ready": 0}})
        there = await namespace.api.get(path)
        await namespace.api.delete(path, there["metadata"]["uid"])
        await namespace.api.patch(path, {"metadata": {"finalizers": None}})
        async with asyncio.timeout(60):
            while await is_there(namespace, path):
                await asyncio.sleep(0.05)


async def is_there(namespace: Namespace, path: str) -> bool:
    try:
        await namespace.api.get(path)
    except NotFound:
        return False
    return True


async def test_a_dry_run_shows_the_patch_and_what_is_wrong(
    found: Installed, namespace: Namespace, kubeconfig: Path, program: str, tmp_path: Path
) -> None:
    """`kubectl create --dry-run=server` prints the variables, warnings and refusals, and nothing is created."""

    async def tried(body: Object) -> tuple[int, str, str]:
        command = [program, f"--kubeconfig={kubeconfig}", f"--namespace={namespace.name}", "create", "-f", "-"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, "--dry-run=server", "-o", "json", stdin=pipe, stdout=pipe, stderr=pipe
        )
        output, errors = await process.communicate(json.dumps(body).encode())
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()

    async with heeded(found, namespace, tmp_path):
        right = job("retry")
        right["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "HIGH_AVAILABILITY", "value": "dump"}]
        code, output, errors = await tried(right)
        assert (code, variables(json.loads(output)) > INJECTED) == (0, True)
        assert "Warning: spec.template.spec.containers.0.env.HIGH_AVAILABILITY: 'dump' stays" in errors
        code, output, errors = await tried(job(WRONG))
        assert (code, output) == (1, "")
        assert 'fix: recover-strategy: "retry,recover"' in errors
        assert not await is_there(namespace, namespace.path("jobs", "gpt"))
        unnamed = job("retry")
        unnamed["metadata"] |= {"name": None, "generateName": "gpt-"}
        code, output, errors = await tried(unnamed)
        assert (code, variables(json.loads(output)) > INJECTED, errors) == (0, True, "")


async def test_jobs_pass_while_the_webhook_is_away(found: Installed, namespace: Namespace, tmp_path: Path) -> None:
    """A wrong job is created as it is."""
    async with heeded(found, namespace, tmp_path):
        assert not await is_admitted(namespace, job(WRONG))
    created = await namespace.api.create(namespace.path("jobs"), job(WRONG))
    assert variables(created) == set()


async def test_an_installation_may_let_no_job_pass(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> None:
    """Jobs that ask for recoveries are refused while the webhook is away. Other jobs pass, and so do changes by recoveries."""
    endpoint = endpoint_of(kubeconfig)
    await apply_crds(namespace.api)
    await install(namespace.api, endpoint, tmp_path)
    await namespace.api.create(namespace.path("jobs"), job("retry"))
    change = {"metadata": {"annotations": {"rekindle.io/memory": "changed"}}}
    async with installed(namespace.api, endpoint, tmp_path, "Fail"), Api(kubeconfig_of("control", tmp_path)) as control:
        async with asyncio.timeout(60):
            while await is_admitted(namespace, job("retry", "another")):
                await asyncio.sleep(0.05)
        other = job("retry", "web")
        other["metadata"]["annotations"] = {}
        assert await is_admitted(namespace, other)
        with pytest.raises(ClusterError, match=r"(mutate|validate)\.rekindle\.io"):
            await namespace.api.patch(namespace.path("jobs", "gpt"), change)
        await control.patch(namespace.path("jobs", "gpt"), change)


async def test_rights_are_enough_and_no_more(found: Installed, namespace: Namespace, tmp_path: Path) -> None:
    """The webhook reads and writes its Secret and its two configurations, and nothing else of their kinds. It says on its
    Deployment that it serves."""
    (deployment,) = [one for one in objects(given(webhook__enabled=True)) if name_of(one) == ("Deployment", NAMESPACE, ACCOUNT)]
    deployment["spec"]["replicas"] = 0
    await replaced(namespace.api, DEPLOYMENTS, deployment)
    try:
        async with heeded(found, namespace, tmp_path):
            while not (shown := await shown_by(namespace.api)):
                await asyncio.sleep(0.05)
        assert (shown["status"], shown["reason"]) == ("True", "Serves")
        async with own_workload(Settings(cluster="kubernetes", kubeconfig=found.proxy.kubeconfig), "webhook") as workload:
            await workload.show(await ServerTls().problem())
        assert (await shown_by(namespace.api))["reason"] == "CertificateExpired"
    finally:
        await removed(namespace.api, DEPLOYMENTS, ACCOUNT)
    paths = [SECRET, *(f"{CONFIGURATIONS.format(kind)}/{ACCOUNT}" for kind in ("mutating", "validating"))]
    told = {("PATCH", f"{DEPLOYMENTS}/{ACCOUNT}/status"), ("POST", f"/api/v1/namespaces/{NAMESPACE}/events")}
    assert set(found.proxy.requests) == {(verb, path) for verb in ("GET", "PATCH") for path in paths} | told
    assert granted() == {
        ("", "secrets", (ACCOUNT,), ("get", "patch")),
        ("", "events", (), ("create",)),
        ("apps", "deployments/status", (ACCOUNT,), ("patch",)),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", (ACCOUNT,), ("get", "patch")),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", (ACCOUNT,), ("get", "patch")),
        ("rekindle.io", "priority", (), ("use",)),
    }
    async with Api(found.proxy.kubeconfig) as own:
        for path in (f"{OF_KIND['Secret']}/other", f"{CONFIGURATIONS.format('mutating')}/other", OF_KIND["Secret"]):
            with pytest.raises(Forbidden):
                await own.get(path)


async def shown_by(api: Api) -> Object:
    """Returns the condition that the webhook has written on its Deployment; empty: none."""
    conditions = (await api.get(f"{DEPLOYMENTS}/{ACCOUNT}")).get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "Serving"), {})


def granted() -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {
        (group, resource, tuple(rule.get("resourceNames", ())), tuple(rule["verbs"]))
        for thing in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
        for rule in thing.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


# ---- certificates of several replicas


async def bundles(api: Api) -> set[bytes]:
    """Returns the authorities that the API server trusts."""
    found = [await api.get(f"{CONFIGURATIONS.format(kind)}/{ACCOUNT}") for kind in ("mutating", "validating")]
    return {b64decode(one["clientConfig"]["caBundle"]) for thing in found for one in thing["webhooks"]}


async def shared(api: Api) -> Certificates:
    return certificates_in((await api.get(SECRET)).get("data") or {})


async def test_replicas_agree_on_one_certificate(found: Installed, namespace: Namespace) -> None:
    """The first one that writes decides. The API server trusts what all of them use."""
    replicas = [SharedSecret(namespace.api, NAMESPACE, ServerTls()) for _ in range(5)]
    await asyncio.gather(*(one.look() for one in replicas))
    first = await shared(namespace.api)
    assert {one._held for one in replicas} == {first}
    assert await bundles(namespace.api) == {first.authorities}


async def test_certificates_are_renewed_before_they_end(found: Installed, namespace: Namespace) -> None:
    """Replicas that look at different times use new ones without a restart. A new authority is trusted before it signs."""
    clock = Clock()
    replicas = [SharedSecret(namespace.api, NAMESPACE, ServerTls(clock)) for _ in range(2)]
    await replicas[0].look()
    before = await shared(namespace.api)
    used = [before.certificate]
    while clock.moved < timedelta(days=330):
        clock.moved += timedelta(days=5)
        for one in replicas:
            await one.look()
            now = await shared(namespace.api)
            assert one._held == now
            assert await one._tls.problem() is None
            assert now.certificate == used[-1] or now.authorities == before.authorities, "one of both at a time"
            assert await bundles(namespace.api) == {now.authorities}
            used, before = [*used, now.certificate], now
    assert len(set(used)) > 10
    assert before.authorities.count(b"BEGIN CERTIFICATE") == 2


async def test_no_certificate_is_used_before_its_authority_is_trusted(
    found: Installed, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configurations cannot be written while authority and certificate are due: the certificate before stays in use."""
    clock = Clock()
    tls = ServerTls(clock)
    one = SharedSecret(namespace.api, NAMESPACE, tls)
    while clock.moved < timedelta(days=275):
        await one.look()
        clock.moved += timedelta(days=5)
    patch = namespace.api.patch

    async def refused(path: str, body: Object) -> Object:
        if "webhookconfigurations" in path:
            raise ClusterUnavailable("not now")
        return await patch(path, body)

    monkeypatch.setattr(namespace.api, "patch", refused)
    used, trusted = tls._used[0], await bundles(namespace.api)
    clock.moved = timedelta(days=275)
    for _ in range(30):
        clock.moved += timedelta(hours=6)
        with suppress(ClusterUnavailable):
            await one.look()
        assert (await bundles(namespace.api)) == trusted
    assert (await shared(namespace.api)).authorities not in trusted
    assert tls._used[0] == used
    monkeypatch.undo()
    await one.look()
    assert tls._used[0] == (await shared(namespace.api)).certificate


async def test_a_lost_secret_is_filled_with_what_is_in_use(found: Installed, namespace: Namespace) -> None:
    """Somebody deleted it and applied its manifest. The API server trusts the same authority as before."""
    one = SharedSecret(namespace.api, NAMESPACE, ServerTls())
    await one.look()
    before, there = await shared(namespace.api), await namespace.api.get(SECRET)
    await namespace.api.delete(SECRET, there["metadata"]["uid"])
    with pytest.raises(NotFound):
        await one.look()
    await namespace.api.create(OF_KIND["Secret"], {"metadata": {"name": ACCOUNT}})
    await one.look()
    assert await shared(namespace.api) == before


async def test_a_missing_configuration_does_not_stop_the_other(found: Installed, namespace: Namespace) -> None:
    """An installation may only validate."""
    path = f"{CONFIGURATIONS.format('mutating')}/{ACCOUNT}"
    there = await namespace.api.get(path)
    await namespace.api.delete(path, there["metadata"]["uid"])
    await SharedSecret(namespace.api, NAMESPACE, ServerTls()).look()
    other = await namespace.api.get(f"{CONFIGURATIONS.format('validating')}/{ACCOUNT}")
    assert other["webhooks"][0]["clientConfig"]["caBundle"]


def test_every_kind_is_asked_about() -> None:
    """The rules of both configurations have each kind whose pods the Ascend Operator does not make."""
    wanted = {tuple(row.api.split("/")) for row in ROWS.values() if not row.of_operator}
    for name in ("mutating", "validating"):
        (webhook,) = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["webhooks"]
        assert {(rule["apiGroups"][0], rule["apiVersions"][0]) for rule in webhook["rules"]} == wanted
