"""A job whose model is sharded within replicas (HSDP) goes on with fewer replicas, and takes them back as a whole."""

import signal
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.places import Places, Refused
from rekindle_training.adapter.sums import Sums
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.whole_replicas import WholeReplicas, problem, refuse_indivisible
from tests.training.dialogue import kill_rank, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote
from tests.training.test_elastic import Whole, finals, is_as_whole, lost, samples

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("elastic_sharded.py"))
RANKS = 6
"""Three replicas of two ranks, each of which is a pod."""


@pytest.fixture
def elastic(job: Job) -> Job:
    """Prepares a job with one rank in each pod."""
    job.script, job.arguments, job.pods, job.ranks_of_all = SCRIPT, [], RANKS, RANKS
    job.slow_down(1500)
    return job


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Whole:
    """Returns how an undisturbed run of the script ended, and the samples of each of its steps."""
    peer = GatewayPeer()  # type: ignore[abstract]
    await peer.start()
    job = Job(tmp_path_factory.mktemp("whole"), zygote, peer, {}, [], SCRIPT, pods=1, ranks_of_all=RANKS)
    await job.start()
    assert await job.codes() == {0}, job.outputs()
    await peer.stop()
    return finals(job), samples(job)


async def test_replicas_leave_and_come_back_as_a_whole(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """The replica of rank 0 is lost, then another one, and both come back. Samples and parameters equal an undisturbed run's."""
    await elastic.start()
    await elastic.reached(3, rank=2)
    assert await lost(elastic, gateway, 0) == ["recover", "downgrade", "dump", "exit"]
    await gateway.smaller(0)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 406)
    assert info.startswith("ranks [0, 1] are one replica, and rank 1 of it is not named: its pods leave and come back together")
    await gateway.smaller(0, 1, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("downgrade", 0)
    await elastic.lose("worker-1")
    await lost(elastic, gateway, 5, uuid="attempt-3", number=2)
    await gateway.smaller(4, 5, uuid="attempt-3")
    strategy, code, info = await status(gateway, 3)
    assert (strategy, code) == ("downgrade", 0)
    assert info.endswith("with 2 of 6 ranks")
    await elastic.lose("worker-4")
    for number, pods in enumerate(((0, 1), (4, 5)), 4):
        for pod in pods:
            await elastic.worker(pod)
        await gateway.larger(*pods, uuid=f"attempt-{number}")
        assert (await status(gateway, number))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)


async def test_the_last_replica_does_not_leave(elastic: Job, gateway: GatewayPeer) -> None:
    """A pod has both ranks of a replica here. When the last one loses a shard, only a restart is offered."""
    elastic.pods, elastic.ranks_of_all = 2, 4
    await elastic.start()
    await elastic.reached(3)
    await elastic.lose("worker-1")
    await gateway.report("ReportProcessFault")
    assert "downgrade" in await opened(gateway, 2, 3)
    await gateway.smaller(1)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 0)
    assert info.endswith("with 2 of 4 ranks")
    kill_rank(elastic, 1)
    await gateway.report("ReportProcessFault", 2)
    assert await opened(gateway, 1, uuid="attempt-2", number=2) == ["exit"]
    assert "repair not offered" in elastic.outputs()
    await gateway.smaller(0, uuid="attempt-2")
    assert await status(gateway, 2) == ("downgrade", 406, "no rank would be left to train")


# ---- device meshes


def in_replicas(replicas: int = 2, shards: int = 2) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicas", "shards"))


def sharded(mesh: DeviceMesh, **options: Any) -> tuple[torch.nn.Module, FullySharded]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model, mesh=mesh, **options)
    return model, FullySharded([model])


def test_whole_replicas_may_leave(four_ranks: None) -> None:
    """The mesh has one dimension of replicas and one of shards, and all ranks of the job."""
    model, modules = sharded(in_replicas())
    assert problem(modules, model.parameters(), 4) == ""
    assert problem(modules, model.parameters(), 6) == "the device mesh has 4 of 6 ranks"


def test_ranks_that_cannot_be_divided_into_replicas_are_refused(four_ranks: None) -> None:
    """The message has both numbers. Their shares are not divided into parts."""
    _, modules = sharded(in_replicas())
    refuse_indivisible(modules, 6, 1)
    with pytest.raises(ValueError, match="5 ranks are no multiple of the 2 ranks over which a replica is sharded"):
        refuse_indivisible(modules, 5, 1)
    with pytest.raises(ValueError, match=r"shares\(parts=3\) are not accepted for a model that is sharded"):
        refuse_indivisible(modules, 6, 3)


def test_the_number_of_replicas_is_fixed_where_they_cannot_be_told_apart(four_ranks: None) -> None:
    """Each reason says what is accepted."""
    model, modules = sharded(init_device_mesh("cpu", (4,)))
    assert problem(modules, model.parameters(), 4).endswith("the device mesh has no replicas of them")
    crossed = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("replicas", "shards"))
    model, modules = sharded(crossed)
    assert problem(modules, model.parameters(), 4).endswith("accepted are replicas in ascending order")
    model, modules = sharded(in_replicas(1, 4), reshard_after_forward=2)
    assert problem(modules, model.parameters(), 4).startswith("reshard_after_forward is a number of ranks")
    model, modules = sharded(in_replicas())
    other = torch.nn.Parameter(torch.ones(1))
    assert problem(modules, [*model.parameters(), other], 4) == "some parameters that train are not sharded by fully_shard"


def test_a_step_that_would_not_sum_over_replicas_is_refused(four_ranks: None) -> None:
    """Nothing else sums the gradients of replicas, so that this holds at full size, too."""
    model, modules = sharded(in_replicas())
    sums = Sums(lambda: Team.of((), 4), 0, Places())
    whole = WholeReplicas(modules, sums, 0)
    with pytest.raises(Refused, match="a backward pass is outside of"):
        model(torch.ones(1, 4)).sum().backward()
    sums.begin_batches(list)
    model(torch.ones(1, 4)).sum().backward()
    sums.has_batch = False
    with pytest.raises(Refused, match="the script updates before its loop over"):
        sums.before_update(gathers=False)
    cast(Any, model).set_requires_gradient_sync(False)
    model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(Refused, match="gradients are kept back by set_requires_gradient_sync"):
        whole.conclude()


def test_gradients_of_shards_that_are_changed_before_replicas_are_summed_are_refused(four_ranks: None) -> None:
    """Passes may add to gradients several times. Clipping would act on the gradients of one replica."""
    model, modules = sharded(in_replicas())
    sums = Sums(lambda: Team.of((), 4), 0, Places())
    whole = WholeReplicas(modules, sums, 0)
    sums.begin_batches(list)
    with whole.looking(True):
        model(torch.ones(1, 4)).sum().backward()
        model(torch.ones(1, 4)).sum().backward()
    looking = whole.looking(True)
    looking.__enter__()
    model(torch.ones(1, 4)).sum().backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    with pytest.raises(Refused, match="gradients are changed inside"):
        looking.__exit__(None, None, None)
