"""The whole product, for real: whatever happens to ranks or their pods, the parameters are those of an undisturbed run, bit for
bit, and the cheapest mode that can mend it is the one that does."""

import pytest

from rekindle.cli.demos.process_faults import Strike
from rekindle.cli.demos.scenario import CHECKPOINT_EVERY
from rekindle.model.mode import Mode
from tests.end_to_end.conftest import Product, moved

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

ONE = pytest.mark.same_path("a rank is struck or a pod is lost, on one machine")
AGAIN = pytest.mark.same_path("a second fault during a recovery, on one machine")

PHASES = {
    "the fault is reported": "process fault report sent",
    "it offers": "strategies report sent",
    "the repair is ordered": "order=changeStrategy",
}
"""Phases of a recovery, by the text that the manager logs when each begins. An in-place recovery begins with its order."""

IN_PLACE = ("the fault is reported", "the repair is ordered")


@ONE
async def test_a_rank_that_is_killed_is_replaced_in_its_pod(product: Product) -> None:
    """A single process is replaced, and no step is lost between the fault and the next step on all ranks."""
    result = await product.struck(Mode.IN_PLACE, Strike.KILL)
    (rank,) = result["switched"]
    assert rank["rank"] == 2
    assert rank["before"]["pid"] != rank["after"]["pid"]
    assert all(rank["before"][key] == rank["after"][key] for key in ("pod", "node"))
    assert 0 < result["detection_seconds"] < result["fault_to_step_seconds"]
    assert result["steps_lost"] == 0


@ONE
async def test_two_ranks_of_two_pods_are_killed_at_once(product: Product) -> None:
    """Ranks of two pods are recovered together; one of them is rank 0."""
    assert moved(await product.struck(Mode.IN_PLACE, Strike.KILL, rank=0, ranks_at_once=2)) == [0, 2]


@ONE
async def test_a_rank_that_is_stopped_is_replaced_in_its_pod(product: Product) -> None:
    """A process that is stopped is replaced like one that ended."""
    assert moved(await product.struck(Mode.IN_PLACE, Strike.FREEZE, rank=1)) == [1]


@ONE
async def test_a_step_that_raises_is_recovered_in_place(product: Product) -> None:
    """The process of the rank lives, and goes on."""
    assert moved(await product.struck(Mode.ONLINE_RETRY, Strike.EXCEPTION, rank=0)) == []


@ONE
async def test_a_step_for_which_memory_is_wanting_is_repeated(product: Product) -> None:
    """The step is repeated when it fails on two ranks at once, and no process ends."""
    assert moved(await product.struck(Mode.ONLINE_RETRY, Strike.MEMORY, ranks_at_once=2)) == []


@ONE
async def test_an_owner_who_allows_nothing_else_gets_a_restart(product: Product) -> None:
    """The job begins again at its last checkpoint with `recover-strategy: exit`."""
    result = await product.struck(Mode.JOB_RESCHEDULING, Strike.KILL, rank=0)
    assert result["mode"] == "job rescheduling"
    assert moved(result) == [0, 1, 2, 3]
    assert result["steps_lost"] <= CHECKPOINT_EVERY, result


@ONE
async def test_a_lost_pod_is_replaced_by_another(product: Product) -> None:
    """The ranks of the pod of rank 0 move, and the others keep their processes. The node of a failed pod may be used again."""
    result = await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL, rank=0)
    assert moved(result) == [0, 1]
    for one in result["switched"]:
        assert all(one["before"][key] != one["after"][key] for key in ("pid", "pod")), one


@ONE
async def test_two_lost_pods_are_replaced_together(product: Product) -> None:
    """Two of four pods are lost; state that only their ranks have is kept in the other two."""
    assert moved(await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL, pods=4, rank=1, ranks_at_once=2)) == [1, 3]


@ONE
async def test_without_a_spare_node_the_job_is_rescheduled(product: Product) -> None:
    """The pod that was lost starts again with all others, where there is place."""
    result = await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL, no_spare=True)
    assert "no spare" in result["ladder"][0]["reason"]


@ONE
async def test_a_rank_is_replaced_where_no_spare_is_loaded(product: Product) -> None:
    """The launcher of the rank starts another process."""
    assert moved(await product.struck(Mode.IN_PLACE, Strike.KILL, no_spare=True)) == [2]


@AGAIN
@pytest.mark.parametrize("phase", IN_PLACE)
async def test_a_rank_of_another_pod_is_killed_meanwhile(product: Product, phase: str) -> None:
    """Both ranks are replaced, and no step is lost, whatever the recovery has come to by then."""
    again = (PHASES[phase], lambda job: job.kill_rank(0))
    assert moved(await product.struck(Mode.IN_PLACE, Strike.KILL, again)) == [0, 2]


@AGAIN
@pytest.mark.parametrize("phase", IN_PLACE)
async def test_the_manager_is_killed_meanwhile(product: Product, phase: str) -> None:
    """Another one learns of ranks and launchers where the recovery is."""
    again = (PHASES[phase], lambda job: job.kill_manager())
    assert moved(await product.struck(Mode.IN_PLACE, Strike.KILL, again)) == [2]


@AGAIN
@pytest.mark.parametrize("phase", ["it offers", "the repair is ordered"])
async def test_another_pod_is_lost_meanwhile(product: Product, phase: str) -> None:
    """Both pods are replaced together when the second one is lost while the first new pod starts or takes over."""
    again = (PHASES[phase], lambda job: job.kill_pod(3))
    assert moved(await product.struck(Mode.PROCESS_RESCHEDULING, Strike.KILL, again, pods=4, rank=1)) == [1, 3]
