"""A process that does not serve says why on its Deployment, under its own account."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.clusters.api_server import Api, Object
from rekindle.errors import Unavailable
from rekindle.model.examined import Problem
from rekindle.settings import Settings
from simulators.kubernetes.installation import NAMESPACE, install, kubeconfig_of
from tests.gateway.processes import started
from tests.kubernetes.test_doctor import APPS, CORE, removed, replaced
from tests.kubernetes.world.control_plane import Namespace, endpoint_of
from tests.support.charts import given, objects
from workers.own_workload import own_workload

pytestmark = pytest.mark.timeout(240)

PROCESSES = {"control": "deployments", "watcher": "deployments", "operator": "deployments", "gateway": "statefulsets"}

WRONG = Problem(reason="TemporalForbidden", words="Temporal refuses us", mend="let it not")


@pytest.fixture
async def api(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Api]:
    """Has the workloads of the chart, without pods."""
    await install(namespace.api, endpoint_of(kubeconfig), tmp_path)
    for thing in (one for one in objects(given()) if one["kind"] in ("Deployment", "StatefulSet")):
        thing["spec"]["replicas"] = 0
        await replaced(namespace.api, f"{APPS}/{thing['kind'].lower()}s", thing)
    yield namespace.api
    for process, plural in PROCESSES.items():
        await removed(namespace.api, f"{APPS}/{plural}", f"rekindle-{process}")


def settings_of(process: str, directory: Path) -> Settings:
    return Settings(cluster="kubernetes", kubeconfig=kubeconfig_of(process, directory))


async def condition_of(api: Api, process: str) -> Object:
    workload = await api.get(f"{APPS}/{PROCESSES[process]}/rekindle-{process}")
    return next((one for one in workload["status"].get("conditions") or () if one["type"] == "Serving"), {})


async def events_of(api: Api, process: str) -> list[Object]:
    selector = f"involvedObject.name=rekindle-{process},reason={WRONG.reason}"
    return (await api.list(f"{CORE}/events", fieldSelector=selector)).items


async def test_each_process_may_say_why_it_does_not_serve(api: Api, tmp_path: Path) -> None:
    """A condition and one event have the reason. Of a StatefulSet, the condition stays until its controller looks at it."""
    for process, plural in PROCESSES.items():
        async with own_workload(settings_of(process, tmp_path), process) as workload:
            await workload.show(WRONG)
            await workload.show(WRONG)
            assert len(await events_of(api, process)) == 1, process
            if plural == "deployments":
                wrong = await condition_of(api, process)
                assert (wrong["status"], wrong["reason"]) == ("False", WRONG.reason)
                assert wrong["message"].endswith("Temporal refuses us; let it not")
            await workload.show(None)
            if plural == "deployments":
                right = await condition_of(api, process)
                assert (right["status"], right["reason"]) == ("True", "Serves")


async def test_an_error_at_the_start_is_shown_and_passed_on(api: Api, tmp_path: Path) -> None:
    """An account without rights, and a workload that is not there, change nothing about it."""
    for process in ("control", "webhook"):
        settings = settings_of("control", tmp_path)
        with pytest.raises(Unavailable, match="not there"):
            async with own_workload(settings, process) as workload, workload.explaining():
                raise Unavailable("Temporal is not there", "TemporalUnreachable")
    assert (await condition_of(api, "control"))["reason"] == "TemporalUnreachable"


@pytest.mark.costly
async def test_a_control_worker_without_its_namespace_says_so_in_kubectl_describe(
    api: Api, temporal: WorkflowEnvironment, kubeconfig: Path, program: str, tmp_path: Path
) -> None:
    """The process ends with exit code 1, and its Deployment says what to type."""
    variables = {
        "REKINDLE_CLUSTER": "kubernetes",
        "REKINDLE_KUBECONFIG": kubeconfig_of("control", tmp_path),
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": "elsewhere",
    }
    async with started("control", tmp_path, **variables) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    words = "create it: temporal operator namespace create --namespace elsewhere; or set TEMPORAL_NAMESPACE"
    assert errors.decode().splitlines()[-1].endswith(words)
    command = [program, f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "describe", "deployment", "rekindle-control"]
    described = (await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)).stdout
    assert "TemporalNamespaceMissing" in described.partition("Conditions:")[2].partition("Events:")[0]
    assert words in described.partition("Events:")[2]
