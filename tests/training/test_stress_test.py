"""A stress test of a job, with real processes and a scripted gateway: what it finds, and that training does not notice it."""

import json
import re

from tests.training.dialogue import fault, kill_rank, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job

CHECKS = {0: "aic", 1: "hccs", 2: "memory"}


async def paused(job: Job, gateway: GatewayPeer, *faults: dict[str, str]) -> None:
    """Starts a new job, pauses it somewhere in training, and makes each check take a few seconds."""
    job.slow_down()
    job.environment |= {"REKINDLE_STRESS_SECONDS": "4", "REKINDLE_INJECT": json.dumps(faults)}
    await job.start()
    await job.reached(2)
    await gateway.pause()
    assert (await gateway.report("ReportStopComplete")).status.code == 0


async def went_on(job: Job, gateway: GatewayPeer) -> None:
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    assert await job.codes() == {0}


async def test_training_does_not_notice_a_stress_test(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A stress test has a line with figures for each check on each rank. Parameters are those of an undisturbed run, bit for bit,
    no step is done twice, and the group is that of before. A repeated order is answered again, and nothing is done."""
    await paused(job, gateway)
    await gateway.stress(dict.fromkeys(range(WORLD), (0, 1, 2)))
    told = await gateway.tested()
    assert {rank: {name: code for name, (code, _) in of_rank.items()} for rank, of_rank in told.items()} == {
        rank: dict.fromkeys(CHECKS.values(), "0") for rank in range(WORLD)
    }
    for of_rank in told.values():
        assert all(re.search(r"0 \w+.* wrong.*\d+\.\d+ G(B|FLOP)/s, \d+\.\d s", line) for _, line in of_rank.values()), of_rank
    await gateway.stress(dict.fromkeys(range(WORLD), (0, 1, 2)))
    assert await gateway.tested(2) == told
    await went_on(job, gateway)
    assert gateway.metadata["ReplyStressTestResult"] == 2 * [
        {"rekindle-attempt": "attempt-1", "rekindle-info-bin": "12 checks of 4 ranks: nothing found"}
    ]
    assert job.final() == reference
    assert job.executed_once()
    assert {step["generation"] for rank in range(WORLD) for step in job.steps(rank)} == {1}


async def test_a_node_that_computes_wrongly_is_found(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The ranks of the node report it in every check that it disturbs. Other ranks and checks are as they should be. An invalid
    order is answered without results."""
    node = {"node": "node-2"}
    await paused(job, gateway, {"fault": "wrong-product", **node}, {"fault": "wrong-message", **node})
    await gateway.stress({9: (0,)})
    assert await gateway.tested() == {}
    assert gateway.metadata["ReplyStressTestResult"][0]["rekindle-info-bin"] == "stressParam: '9' is not one of 0 to 3"
    await gateway.stress({0: (1,), 1: (1, 7), 2: (0, 1), 3: (0, 1)})
    codes = {rank: {name: code for name, (code, _) in of_rank.items()} for rank, of_rank in (await gateway.tested(2)).items()}
    wrong = {"aic": "2", "hccs": "2"}
    assert codes == {0: {"hccs": "0"}, 1: {"hccs": "0", "7": "1"}, 2: wrong, 3: wrong}
    await went_on(job, gateway)
    assert job.final() == reference


async def test_a_rank_that_hangs_in_a_check_has_timed_out(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A rank that hangs is not asked further, the others exchange messages without it, and training goes on with it all the
    same."""
    await paused(job, gateway, {"fault": "check-hangs", "node": "node-1"})
    await gateway.stress({0: (0, 1), 2: (1,), 3: (1,)})
    told = await gateway.tested()
    assert {rank: {name: code for name, (code, _) in of_rank.items()} for rank, of_rank in told.items()} == {
        0: {"aic": "3", "hccs": "3"},
        2: {"hccs": "0"},
        3: {"hccs": "0"},
    }
    await went_on(job, gateway)
    assert job.final() == reference


async def test_a_rank_that_dies_in_a_stress_test_is_a_fault(job: Job, gateway: GatewayPeer) -> None:
    """The fault is reported as always. The test is answered afterwards, with the results that are known of it."""
    await paused(job, gateway, {"fault": "check-hangs", "node": "node-1"})
    await gateway.stress({0: (0,), 3: (2, 0)})
    await job.printed("device checks started")
    kill_rank(job, 3)
    assert await fault(gateway) == {"3": "1"}
    assert (await gateway.tested())[3]["memory"][0] == "1"
    names = [name for name, _ in gateway.heard]
    assert names.index("ReportProcessFault") < names.index("ReplyStressTestResult")


async def test_a_manager_that_dies_in_a_stress_test_is_followed_by_one_that_makes_it(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The next manager runs the test when it receives it. The check that the manager before had begun gives way."""
    await paused(job, gateway)
    await gateway.stress(dict.fromkeys(range(WORLD), (0, 1)))
    await job.printed("device checks started")
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()
    await gateway.until(lambda: len(gateway.all("SubscribeNotifyExecStressTest")) > 1)
    await gateway.pause()
    assert (await gateway.report("ReportStopComplete", 2)).status.code == 0
    await gateway.stress(dict.fromkeys(range(WORLD), (0, 1)))
    assert {code for of_rank in (await gateway.tested()).values() for code, _ in of_rank.values()} == {"0"}
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    assert await job.codes() == {0, -9}
    assert job.final() == reference
