"""The whole product on a real Kubernetes control plane, each process under its own account: real scheduler, real training."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.demos.process_faults import Strike
from rekindle.cli.stack import ClusterKind, Machine, running
from rekindle.model.mode import Mode
from tests.end_to_end.conftest import Product
from tests.end_to_end.test_hot_switch import SAVED, tried
from tests.fakes.api_proxy import ApiProxy, api_proxy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


@dataclass
class OnKubernetes(Product):
    relays: tuple[ApiProxy, ...] = ()
    """Proxies in front of the API server, for the control worker and the watcher."""

    @property
    def state(self) -> Path:
        return self.directory / "kubernetes"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product() -> AsyncIterator[OnKubernetes]:
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        stack = await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES)))
        relays = []
        for name in ("control", "watcher"):  # they read their kubeconfig when they start again
            own = folder / "kubernetes" / f"kubeconfig-{name}"
            (folder / name).mkdir()
            relays.append(relay := await ends.enter_async_context(api_proxy(own, folder / name)))
            own.write_bytes(relay.kubeconfig.read_bytes())
            started = stack.members[name].started
            process = stack.members[name].process
            assert process
            process.kill()
            while stack.members[name].started == started:
                await asyncio.sleep(0.05)
        yield OnKubernetes(stack, folder, tuple(relays))


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_a_pod_moves_off_a_sub_healthy_node(product: OnKubernetes) -> None:
    """Both ranks of the pod change process, pod and node; no step is lost, and the parameters are those of an undisturbed run."""
    result = await product.run()
    assert tried(result) == [("hot switch", "recovered")], result
    assert result["parameters_equal"]
    assert (result["cluster"], result["steps_lost"], result["policy_after"]) == ("kubernetes", 0, "hotSwitch")
    assert [moved["rank"] for moved in result["switched"]] == [2, 3]
    for moved in result["switched"]:
        assert all(moved["before"][key] != moved["after"][key] for key in ("pid", "pod", "node")), moved


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_a_backup_that_dies_while_it_loads_leads_to_job_rescheduling(product: OnKubernetes) -> None:
    """Pods of one new generation start from what the ranks have saved."""
    result = await product.run(backup_fails=True)
    assert tried(result) == SAVED, result
    assert result["steps_lost"] == 0
    assert result["parameters_equal"]
    assert result["policy_after"] == "ignore"


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_a_broken_api_server_costs_no_recovery(product: OnKubernetes) -> None:
    """All watches of the control worker and the watcher expire while the backup pod loads, and then the API server is killed. The
    hot switch succeeds, and no step is lost."""

    async def break_it() -> None:
        for relay in product.relays:
            relay.expire_watches()
        os.kill(int((product.state / "kube-apiserver.pid").read_text()), signal.SIGKILL)

    result = await product.run(break_it)
    assert tried(result) == [("hot switch", "recovered")], result
    assert result["parameters_equal"]
    assert result["steps_lost"] == 0
    log = (product.directory / "logs" / "watcher.log").read_text()
    assert "too old resource version" in log


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_a_lost_pod_is_replaced_on_another_node(product: OnKubernetes) -> None:
    """Both of its ranks move and the others keep their processes; no step is lost, and the parameters are those of an undisturbed
    run."""
    result = await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL)
    assert [moved["rank"] for moved in result["switched"]] == [2, 3]
    for moved in result["switched"]:
        assert all(moved["before"][key] != moved["after"][key] for key in ("pid", "pod")), moved


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_a_rank_that_is_killed_is_replaced_in_its_pod(product: OnKubernetes) -> None:
    """A rank of the pod of rank 0, in its container: the pod is the same."""
    (moved,) = (await product.struck(Mode.IN_PLACE, Strike.KILL, rank=1))["switched"]
    assert all(moved["before"][key] == moved["after"][key] for key in ("pod", "node")), moved


@pytest.mark.same_path("the whole product, on Kubernetes")
async def test_without_a_spare_node_the_job_is_rescheduled(product: OnKubernetes) -> None:
    """The reason for the escalation is the message of the real scheduler."""
    result = await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL, no_spare=True)
    assert "nodes are available" in result["ladder"][0]["reason"]
