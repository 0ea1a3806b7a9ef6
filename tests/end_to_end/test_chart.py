"""An installation by the chart, whose processes run as pods of a real Kubernetes: it is tested, upgraded and rolled back in the
middle of recoveries, and removed."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.clusters.kubernetes.leftovers import LEASES
from rekindle.model.mode import Mode
from simulators.kubernetes.empty import empty_cluster, kubernetes_of
from tests.end_to_end.all_objects import difference_when_settled
from tests.end_to_end.installed import NAMESPACE, Installed, connected
from tests.support.sampling import ALL

pytestmark = [
    pytest.mark.skipif(not ALL, reason="takes ten minutes: make chart-test"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

LONG_AGO = "2026-01-01T00:00:00.000000Z"

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.rekindle.io"

ORDER = re.compile(r"order received (order=.*) uuid=")
"""Message of the manager about an order that it obeys. A repeated one has another message."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed() -> AsyncIterator[Installed]:
    """The release in a namespace that was empty before."""
    with tempfile.TemporaryDirectory(prefix="rk-chart-") as name:
        async with empty_cluster(Path(name), nodes=3) as stack, connected(stack, Path(name)) as found:
            await found.install()
            yield found


async def test_helm_test_hot_switches_a_small_job(installed: Installed) -> None:
    """The pod of the test waits for training, moves a pod of the job, and ends with the verdict. It stays for its log."""
    await asyncio.to_thread(installed.release.test, "rekindle", timeout=500)
    (log,) = (kubernetes_of(installed.stack) / "pods").glob(f"{NAMESPACE}_rekindle-test.*.log")
    assert "recovered" in log.read_text()


@pytest.mark.parametrize("change", ["upgrade", "rollback"])
@pytest.mark.parametrize("mode", [Mode.HOT_SWITCH, Mode.PROCESS_RESCHEDULING])
async def test_a_recovery_goes_on_through_a_change_of_the_release(installed: Installed, mode: Mode, change: str) -> None:
    """The recovery ends on the version that began it, while all pods of the installation are replaced by those of another one.
    Pods are made once, orders are obeyed once, and no step is lost. Afterwards nothing runs on that version, and its pods end."""
    began = await installed.at(newer=change == "rollback")
    struck = await installed.struck(mode, installed.upgrade if change == "upgrade" else installed.roll_back)
    assert [(step["mode"], step["verdict"]) for step in struck.result["ladder"]] == [(mode, "recovered")], struck.result
    assert (struck.result["steps_lost"], struck.result["parameters_equal"]) == (0, True)
    assert struck.build == began
    names = [pod["metadata"]["name"] for pod in struck.pods]
    assert len(names) == len(set(names)) == 4, names
    orders = ORDER.findall(struck.manager)
    assert len(orders) == len(set(orders)) > 1, orders
    assert await installed.current() != began
    await installed.only(await installed.current())


async def test_a_removal_leaves_nothing(installed: Installed) -> None:
    """The commands of docs/kubernetes.md leave the cluster with the objects that it had before, with the same marks."""
    await asyncio.to_thread(installed.release.uninstall, "rekindle", wait="legacy", timeout=120)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for pod in (await installed.api.list(pods, labelSelector="app.kubernetes.io/component=test")).items:  # Helm leaves it
        await installed.api.delete(f"{pods}/{pod['metadata']['name']}", pod["metadata"]["uid"])
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for lease in (await installed.api.list(LEASES, labelSelector="app.kubernetes.io/part-of=rekindle")).items:
        await installed.api.patch(f"{leases}/{lease['metadata']['name']}", {"spec": {"renewTime": LONG_AGO}})  # a minute later
    kubeconfig = str(kubernetes_of(installed.stack) / "kubeconfig")
    command = ("rekindle", "uninstall", "--kubeconfig", kubeconfig, "--namespace", NAMESPACE)
    done = await asyncio.create_subprocess_exec(*command, env=dict(os.environ), stdout=asyncio.subprocess.PIPE)
    words, _ = await done.communicate()
    assert done.returncode == 0, words.decode()
    definition = await installed.api.get(DEFINITION)
    await installed.api.delete(DEFINITION, definition["metadata"]["uid"])
    await asyncio.to_thread(installed.release.uninstall, "rekindle-crds", wait="legacy")
    assert await difference_when_settled(installed.api, installed.before) == {}
