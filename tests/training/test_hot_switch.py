"""The hot switch as training sees it, with real processes and a scripted gateway."""

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest

from rekindle_wire.training_pb2 import Held, RankMessage
from tests.training.gateway_service import GatewayPeer
from tests.training.job import RANKS_PER_POD, WORLD, Job
from tests.training.processes import Zygote
from tests.training.ranks import ScriptedRank
from tests.training.standalone import Standalone, last_words


async def prepared(job: Job, gateway: GatewayPeer, pod_rank: int = 1) -> None:
    """Takes a new job up to the pause, which the manager reports by itself."""
    job.slow_down()
    await job.start(pod_rank)
    await job.reached(2)
    await gateway.hot_switch(*job.ranks(pod_rank))
    await gateway.order("hot-switch", "new pod running")
    assert await gateway.strategies() == ["migration"]


@pytest.mark.parametrize("pod_rank", [0, 1])
async def test_a_switched_job_ends_as_if_nothing_had_happened(
    job: Job, gateway: GatewayPeer, reference: list[bytes], pod_rank: int
) -> None:
    """Final parameters are equal bit for bit, and no step ran twice, after a hot switch of any pod, rank 0's included. Process,
    pod and node of the switched ranks change, those of the survivors do not, and all are in the new generation."""
    await prepared(job, gateway, pod_rank)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.executed_once()
    for rank in range(WORLD):
        steps = job.steps(rank)
        places = {(step["pid"], step["pod"], step["pod_uid"], step["node"]) for step in steps}
        assert len(places) == (2 if rank in job.ranks(pod_rank) else 1)
        assert (steps[0]["generation"], steps[-1]["generation"]) == (1, 2)
    print(f"pause {job.pause_seconds():.3f} s")


async def test_training_goes_on_until_the_backup_is_loaded(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A backup that starts after the order costs no time: training pauses when it is loaded and not before."""
    job.slow_down()
    await job.start()
    await gateway.hot_switch(2, 3)
    await job.reached(3)
    await job.backup(1)
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_the_replaced_ranks_wait_for_the_end_of_their_pod(job: Job, gateway: GatewayPeer) -> None:
    """The replaced ranks neither train nor end, since a pod that ends by itself has ended its rank for the cluster."""
    await prepared(job, gateway, pod_rank=1)
    replaced = job.children("worker-1")
    await gateway.migrate()
    assert await gateway.status() == 0
    reached = job.steps(2)[-1]["step"]
    await job.reached(reached + 3, rank=2)
    assert job.children("worker-1") == replaced
    job.started["worker-1"].kill()
    assert await job.codes() == {0, -9}
    assert not gateway.all("ReportProcessFault")


async def test_the_old_pod_may_be_deleted_while_training_is_paused(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The death of the old pod between the report of the pause and the migration is no fault, and disturbs nothing."""
    await prepared(job, gateway, pod_rank=1)
    job.started["worker-1"].kill()
    await job.started["worker-1"].code()
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    assert not gateway.all("ReportProcessFault")


async def test_training_goes_on_where_it_was_when_the_backup_dies(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A backup that dies after the pause costs nothing: the order to migrate lets the old ranks go on."""
    await prepared(job, gateway, pod_rank=1)
    await job.lose("backup-1")
    await gateway.migrate()
    assert await gateway.status("continue") == 0
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    assert job.executed_once()


async def test_migration_fails_when_neither_backup_nor_old_pod_is_left(job: Job, gateway: GatewayPeer) -> None:
    """Migration fails with status 406, since nothing is left with which to go on."""
    job.environment["REKINDLE_REBUILD_TIMEOUT"] = "3"
    await prepared(job, gateway, pod_rank=1)
    for pod in ("backup-1", "worker-1"):
        await job.lose(pod)
    await gateway.migrate()
    assert await gateway.status() == 406


async def test_a_stopped_switch_leaves_everything_as_it_was(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """`stop switch` sends the backup away with 0; training never paused, and another switch may follow."""
    job.slow_down()
    await job.start(1)
    await gateway.hot_switch(2, 3)
    await job.printed("role=backup", times=2)
    await gateway.order("hot-switch", "stop switch")
    assert await job.started["backup-1"].code() == 0
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_second_switch_follows_the_first(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """Each switch is a generation of its own; ranks that were brought up to date once may bring others up to date."""
    await prepared(job, gateway, pod_rank=0)
    await gateway.migrate()
    assert await gateway.status() == 0
    await gateway.hot_switch(2, 3, uuid="attempt-2")
    await job.backup(1)
    await gateway.report("ReportRecoverStrategy", 2)
    await gateway.migrate(uuid="attempt-2")
    assert (await gateway.report("ReportRecoverStatus", 2)).status.code == 0
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.steps(3)[-1]["generation"] == 3


async def test_orders_that_come_again_are_carried_out_once(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The control plane repeats orders after an outage; inside one attempt each of them counts once."""
    await prepared(job, gateway, pod_rank=1)
    await gateway.hot_switch(2, 3)
    for _ in range(3):
        await gateway.migrate()
    assert await job.codes() == {0}
    assert job.final() == reference
    assert len(gateway.all("ReportRecoverStrategy")) == 1
    assert len(gateway.all("ReportRecoverStatus")) == 1


@pytest.mark.same_path("a corrupted migration")
@pytest.mark.parametrize("left_out", ["optimizer", "bit"])
async def test_a_migration_that_is_not_exact_does_not_count(job: Job, gateway: GatewayPeer, left_out: str) -> None:
    """Ranks are compared after the first step of a migration. A missing state of the optimizer, or one flipped bit, ends training
    with an explanation."""
    job.environment["REKINDLE_TAMPER"] = left_out
    await prepared(job, gateway, pod_rank=1)
    await gateway.migrate()
    assert await gateway.status() == 406
    assert "after a recovery: the state of this training is not proved any more" in job.outputs()


@pytest.mark.same_path("a corrupted migration")
async def test_the_comparison_of_final_parameters_is_honest(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """Random numbers are each rank's own, so that only the final parameters show that they are other ones."""
    job.environment["REKINDLE_TAMPER"] = "rng"
    await prepared(job, gateway, pod_rank=1)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert job.final() != reference


def digests(printed: str) -> set[str]:
    """Returns the digests of the final parameters, which all ranks have printed."""
    finals = [line.split() for line in last_words(printed)]
    assert sorted(rank for _, rank, _, _ in finals) == ["0", "1", "2", "3"]
    return {digest for _, _, _, digest in finals}


@pytest.mark.same_path("a model in DDP is switched")
@pytest.mark.parametrize("how", [{}, {"WRAPS_AGAIN": "yes"}], ids=["wrapped once", "wrapped again in on_rebuild"])
async def test_a_model_in_ddp_is_switched(
    how: dict[str, str], job: Job, gateway: GatewayPeer, zygote: Zygote, tmp_path: Path
) -> None:
    """A script that wraps its model in DDP ends with the parameters of an undisturbed run, to the bit."""
    script = str(Path(__file__).with_name("scripts").joinpath("ddp.py"))
    undisturbed = digests(await Standalone(tmp_path / "undisturbed", zygote).run(script=script))
    job.script, job.arguments = script, []
    job.environment |= how
    await prepared(job, gateway, pod_rank=0)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert digests(job.outputs()) == undisturbed


async def test_a_rank_that_cannot_join_fails_the_migration(job: Job, gateway: GatewayPeer) -> None:
    """An error inside the rebuild is reported as 406 at once, with the rank and the reason."""
    job.script, job.arguments = str(Path(__file__).with_name("scripts").joinpath("ddp.py")), []
    job.environment |= {"FAILS_AT_RANK": "1", "WRAPS_AGAIN": "yes"}
    await prepared(job, gateway, pod_rank=1)
    await gateway.migrate()
    assert await gateway.status() == 406
    assert (
        "rank 1: callback wrap of on_rebuild: RuntimeError: the user's callback failed"
        in gateway.all("ReportRecoverStatus")[0].status.info
    )


async def test_a_job_of_one_pod_offers_no_migration(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A job whose every rank would be switched is offered only `exit`, since no rank could hand its state over. Training goes
    on."""
    job.slow_down()
    await job.start(0, 1)
    await gateway.hot_switch(0, 1, 2, 3)
    assert await gateway.strategies() == ["exit"]
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_frozen_backup_is_found_out_in_time(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A backup that is connected but does not answer counts as dead: training goes on on the old ranks."""
    await prepared(job, gateway, pod_rank=1)
    frozen = job.children("backup-1")
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    await gateway.migrate()
    assert await gateway.status("continue") == 0
    job.started["backup-1"].kill()
    assert await job.codes() == {0, -9}
    assert job.final() == reference


async def test_a_switch_that_comes_with_the_last_step_lets_training_end(job: Job, gateway: GatewayPeer) -> None:
    """No strategy is offered, so that a job that is almost done is not restarted. All ranks are released."""
    await job.manager()
    held = RankMessage(held=Held(step=3, total=3))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        roles = [*(("worker", rank) for rank in range(WORLD)), *(("backup", rank) for rank in job.ranks(1))]
        ranks = [
            ScriptedRank(channel, rank, role, lambda message: held if message.HasField("hold") else None) for role, rank in roles
        ]
        await gateway.hot_switch(*job.ranks(1))
        await job.printed("training ends with step 3")
        await asyncio.gather(*(rank.finish() for rank in ranks[:WORLD]), *(backup.left() for backup in ranks[WORLD:]))
        assert await job.started["manager"].code() == 0
        assert [rank.told for rank in ranks] == [["rebuild", "hold", "resume"]] * WORLD + [["leave"]] * RANKS_PER_POD
    assert gateway.all("ReportRecoverStrategy") == []
