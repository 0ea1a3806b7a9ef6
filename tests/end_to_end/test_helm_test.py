"""`helm test` of a release, on a real Kubernetes control plane with real training."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from helm_python import Config

from rekindle.cli.stack import ClusterKind, Machine, running
from simulators.local_cluster.environment import LOOPBACK, free_port
from tests.kubernetes.world.manifests import PROCESSES, of_kind
from tests.support.charts import CHART, given, objects

pytestmark = pytest.mark.timeout(400)

VALUES = given(
    namespaces=["helm"],
    besideOthers=True,
    rbac__scope="namespaces",
    shared={"priorityClasses": False, "standbyPriorityClass": False, "marks": False, "trainingJobRoles": False},
    test__image="training:1",
)


def chart_for_this_machine(folder: Path) -> Path:
    """Returns a copy of the chart for simulated kubelets. They give a pod no address of its own, so that ranks find their manager
    at a port of this machine. They also mark processes by a variable that is a setting of ours. The processes of the release are
    left out, since those of `rekindle dev` serve the job."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    for process in PROCESSES:
        (chart / "templates" / f"{process}.yaml").unlink()
    template = chart / "templates" / "tests" / "hot-switch.yaml"
    here = f'  env: {{MASTER_ADDR: {LOOPBACK}, MASTER_PORT: "{free_port(())}"}}'
    text = template.read_text()
    assert "  ranksPerPod: 1\n" in text
    assert "rekindle hot-switch" in text
    text = text.replace("  ranksPerPod: 1\n", f"  ranksPerPod: 1\n{here}\n")
    template.write_text(text.replace("rekindle hot-switch", "env -u REKINDLE_CLUSTER rekindle hot-switch"))
    return chart


async def test_helm_test_hot_switches_a_small_job() -> None:
    """The pod of the test waits for training, moves a pod of the job, and ends with the verdict. Helm removes the job."""
    with tempfile.TemporaryDirectory(prefix="rekindle-helm-") as name:
        folder = Path(name)
        async with running(folder, Machine(3, 2, ClusterKind.KUBERNETES)):
            (kubeconfig,) = (path for path in (folder / "kubernetes").glob("kubeconfig") if path.is_file())
            with Config(kubeconfig_path=kubeconfig, namespace="helm") as release:
                release.install(chart_for_this_machine(folder), "rekindle", VALUES, create_namespace=True)
                await asyncio.to_thread(release.test, "rekindle", timeout=300)
            (job,) = of_kind(objects(VALUES, "helm"), "TrainingJob")
            environment = {**os.environ, "REKINDLE_STATE_DIR": str(folder)}
            told = await asyncio.to_thread(
                subprocess.run,
                ["rekindle", "history", job["metadata"]["name"]],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
    assert "hot switch" in told.stdout
    assert "recovered" in told.stdout
