"""The whole product, for real: every outcome of a hot switch ends with the parameters of an undisturbed run, bit for bit."""

from typing import Any

import pytest

from tests.end_to_end.conftest import Product, moved

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


def tried(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["mode"], step["verdict"]) for step in result["ladder"]]


SAVED = [("hot switch", "escalate"), ("dying gasp", "escalate"), ("job rescheduling", "recovered")]
"""Modes after a hot switch that failed while training went on: the ranks save their state before the restart."""


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_pod_moves_off_a_sub_healthy_node(product: Product) -> None:
    """Both ranks of the pod change process, pod and node; no step is lost, and the policy stays."""
    result = await product.run()
    assert tried(result) == [("hot switch", "recovered")], result
    assert result["parameters_equal"]
    assert (result["steps_lost"], result["policy_after"], result["mode"]) == (0, "hotSwitch", "hot switch")
    assert moved(result) == [2, 3]
    for rank in result["switched"]:
        assert all(rank["before"][key] != rank["after"][key] for key in ("pid", "pod", "node")), rank
    assert 0 < result["first_order_seconds"] < result["total_seconds"]


@pytest.mark.same_path("the whole product, on one machine")
async def test_pod_rank_0_moves_too(product: Product) -> None:
    """The pod of rank 0 is switched like any other pod."""
    result = await product.run(pod_rank=0)
    assert tried(result) == [("hot switch", "recovered")], result
    assert result["parameters_equal"]
    assert moved(result) == [0, 1]


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_backup_that_dies_while_it_loads_leads_to_job_rescheduling(product: Product) -> None:
    """The ranks save their state, and the job starts again from it and loses no step. Sub-health is ignored from then on."""
    result = await product.run(backup_fails=True)
    assert tried(result) == SAVED, result
    assert result["parameters_equal"]
    assert result["policy_after"] == "ignore"
    assert moved(result) == [0, 1, 2, 3]
    assert result["steps_lost"] == 0, result


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_backup_that_dies_after_the_pause_leaves_training_where_it_was(product: Product) -> None:
    """The old ranks go on, nothing is lost, no rank moves, and sub-health is ignored from then on."""
    result = await product.run(backup_dies_paused=True)
    assert tried(result) == [("hot switch", "ignored")], result
    assert result["parameters_equal"]
    assert (result["steps_lost"], result["policy_after"], result["switched"]) == (0, "ignore", [])


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_pause_that_never_comes_leads_to_job_rescheduling(product: Product) -> None:
    """The mode escalates when the limit is reached. The ranks save their state, and the job starts again from it."""
    result = await product.run(pause_hangs=True)
    assert tried(result) == SAVED, result
    assert result["parameters_equal"]
    assert result["policy_after"] == "ignore"


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_resume_that_fails_is_mended_by_a_repeated_step(product: Product) -> None:
    """All processes live, also those of the old pod. Training goes on where it stands, and sub-health is ignored from then on."""
    result = await product.run(resume_fails=True)
    assert tried(result) == [("hot switch", "escalate"), ("online retry", "recovered")], result
    assert result["parameters_equal"]
    assert (result["steps_lost"], result["policy_after"], result["switched"]) == (0, "ignore", [])


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_real_fault_while_the_backup_loads_comes_first(product: Product) -> None:
    """The hot switch is cancelled, the rank is replaced in its pod, and the policy stays."""
    result = await product.run(real_fault=True)
    assert tried(result) == [("hot switch", "cancelled"), ("in-place recovery", "recovered")], result
    assert result["parameters_equal"]
    assert result["policy_after"] == "hotSwitch"


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_real_fault_behind_the_pause_comes_first(product: Product) -> None:
    """A rank that was to stay is killed: it is replaced in its pod, nothing is restarted, and the policy stays."""
    result = await product.run(fault_paused=True)
    assert tried(result) == [("hot switch", "cancelled"), ("in-place recovery", "recovered")], result
    assert result["parameters_equal"]
    assert (result["steps_lost"], result["policy_after"]) == (0, "hotSwitch")


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_migration_that_is_not_exact_is_noticed(product: Product) -> None:
    """Other random numbers make the comparison of final parameters fail."""
    result = await product.run(tamper="rng")
    assert tried(result) == [("hot switch", "recovered")], result
    assert not result["parameters_equal"]
