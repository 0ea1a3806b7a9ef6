"""Faults on demand: each does what it says, in the first life of a job only."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rekindle_training.adapter import injected
from rekindle_training.adapter.trained import Trained
from rekindle_training.injection import Injection, InjectionInvalid
from rekindle_training.processor.gate import Gate, Go, Pause
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job


def inject(job: Job, **fault: str) -> None:
    job.environment["REKINDLE_INJECT"] = json.dumps([fault])


async def begun(job: Job, gateway: GatewayPeer) -> None:
    job.slow_down()
    await job.start(1)
    await gateway.hot_switch(2, 3)


async def test_a_pause_that_hangs_is_never_reported(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """Training with `pause-hangs` runs to its end as if it had not been asked to pause."""
    inject(job, fault="pause-hangs")
    await begun(job, gateway)
    await job.printed("injected: the pause hangs")
    assert await job.codes() == {0}
    assert job.final() == reference
    assert not gateway.all("ReportRecoverStrategy")


async def test_a_resumption_that_fails_is_reported_and_can_be_recovered(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """An order to migrate with `resume-fails` is answered with 406. The network is blamed for it, and the step is repeated."""
    inject(job, fault="resume-fails")
    await begun(job, gateway)
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 406
    (blamed,) = (await gateway.report("ReportProcessFault")).faultRanks
    assert blamed.faultType == "2"
    await gateway.stop_train("attempt-2")
    await gateway.announce(blamed.rankId, uuid="attempt-2")
    assert list((await gateway.report("ReportRecoverStrategy", 2)).strategies) == ["retry", "recover", "dump", "exit"]
    await gateway.retry("attempt-2")
    assert (await gateway.report("ReportRecoverStatus", 2)).status.code == 0
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_rank_that_fails_behind_the_pause_is_reported(job: Job, gateway: GatewayPeer) -> None:
    """The first rank that is not switched is killed by `rank-fails` while paused, and the migration fails."""
    inject(job, fault="rank-fails", when="paused")
    await begun(job, gateway)
    assert await gateway.strategies() == ["migration"]
    assert [one.rankId for one in (await gateway.report("ReportProcessFault")).faultRanks] == ["0"]
    await gateway.migrate()
    assert await gateway.status() == 406


async def test_a_backup_that_fails_to_load_never_registers(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A pod with `backup-fails` while loading ends with 1, and training is not touched."""
    inject(job, fault="backup-fails", when="loading")
    await begun(job, gateway)
    assert await job.started["backup-1"].code() == 1
    assert await job.codes() == {0, 1}
    assert job.final() == reference
    assert not gateway.all("ReportRecoverStrategy")


async def test_a_backup_that_fails_behind_the_pause_is_gone_when_it_is_reported(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A pod with `backup-fails` while paused ends with 1, and the order to migrate lets training go on on the old ranks."""
    inject(job, fault="backup-fails", when="paused")
    await begun(job, gateway)
    assert await gateway.strategies() == ["migration"]
    assert await job.started["backup-1"].code() == 1
    await gateway.migrate()
    assert await gateway.status("continue") == 0
    assert await job.codes() == {0, 1}
    assert job.final() == reference


def test_a_restarted_job_is_spared() -> None:
    """A job's first life is recognized by the generation that the cluster counts."""
    fault = json.dumps([{"fault": "pause-hangs"}])
    assert Injection.read({"REKINDLE_INJECT": fault, "REKINDLE_GENERATION": "0"}).pause_hangs
    assert not Injection.read({"REKINDLE_INJECT": fault, "REKINDLE_GENERATION": "1"}).pause_hangs


def test_a_fault_in_a_step_strikes_once_in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is raised in the forward pass of that step on that rank, also in a process that begins in the middle. It is not
    raised when the step is repeated, or in a process that takes the rank over. The job's directory records when the fault
    occurred."""
    monkeypatch.setenv("REKINDLE_INJECT", json.dumps([{"fault": "memory", "rank": 2, "step": 3}]))
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    step = 0

    def life(rank: int) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1)
        injected.arm(trained(model), rank, tmp_path, Gate(), lambda: step, [])
        return model

    first, other, second = life(2), life(1), life(2)
    first(torch.ones(1))
    step = 3
    other(torch.ones(1))
    with pytest.raises(MemoryError, match="injected in step 3"):
        first(torch.ones(1))
    first(torch.ones(1))
    second(torch.ones(1))
    assert float((tmp_path / "injected" / "rank-00002-step-3").read_text()) > 0


def trained(model: torch.nn.Module) -> Trained:
    return Trained(model, torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize(
    ("place", "done"),
    [
        ("forward", []),
        ("backward", ["forward", "gradient"]),
        ("evaluation", ["forward", "gradient", "backward"]),
    ],
)
def test_a_fault_strikes_at_its_place_in_the_step(place: str, done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is raised once: in a forward pass of training, at the end of a backward pass, or in an evaluation."""
    monkeypatch.setenv("REKINDLE_INJECT", json.dumps([{"fault": "exception", "rank": 0, "step": 1, "place": place}]))
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    model = torch.nn.Linear(1, 1)
    injected.arm(trained(model), 0, None, Gate(), lambda: 1, [])
    reached = []

    def turn() -> None:
        loss = model(torch.ones(1))
        reached.append("forward")
        model.weight.register_hook(lambda _: reached.append("gradient"))
        loss.backward()
        reached.append("backward")
        with torch.no_grad():
            model(torch.ones(1))
        reached.append("evaluation")

    with pytest.raises(RuntimeError, match="injected in step 1"):
        turn()
    assert reached == done
    turn()


def test_a_signal_strikes_after_the_last_update_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal is raised by the scope of the step at its end. An error there could not be repeated, and is refused."""
    kill = {"fault": "kill", "rank": 0, "step": 2, "place": "updated"}
    monkeypatch.setenv("REKINDLE_INJECT", json.dumps([kill]))
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    step, on_done = 1, list[Callable[[], None]]()
    injected.arm(trained(torch.nn.Linear(1, 1)), 0, None, Gate(), lambda: step, on_done)
    for step in (1, 2, 3):
        for callback in on_done:
            callback()
        assert sent == [signal.SIGKILL] * (step > 1)
    with pytest.raises(InjectionInvalid):
        Injection.read({"REKINDLE_INJECT": json.dumps([{**kill, "fault": "exception"}])})


def test_a_rank_pauses_behind_the_step_that_an_injection_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank pauses by itself after a named step, so that no order has to come in time. A manager finds it there."""
    monkeypatch.setenv("REKINDLE_INJECT", json.dumps([{"fault": "pause", "rank": 0, "step": 2}]))
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    model, gate = torch.nn.Linear(1, 1), Gate()
    injected.arm(trained(model), 0, None, gate, lambda: gate.completed + 1, [])
    gate.enter(1)
    for step in (1, 2):
        assert gate.wait() == Go()
        model(torch.ones(1))
        gate.complete(step)
    assert gate.wait() == Pause()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"fault": "pause-hangs"}',
        '[{"fault": "rain"}]',
        '[{"fault": "backup-fails"}]',
        "[1]",
        '[{"fault": "memory"}]',
        '[{"fault": "kill", "rank": 0, "step": 1, "place": "nowhere"}]',
        '[{"fault": "kill", "rank": "0", "step": 1}]',
        '[{"fault": "wrong-product"}]',
    ],
)
def test_an_unknown_fault_is_refused_with_what_is_accepted(text: str) -> None:
    """A typing error in a demonstration must not look like a fault that was survived."""
    with pytest.raises(InjectionInvalid, match=r"REKINDLE_INJECT.*pause-hangs.*resume-fails.*loading.*paused"):
        Injection.read({"REKINDLE_INJECT": text})
