"""Metrics of incidents, streams and jobs, as control worker, gateway and watcher count them."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from prometheus_client import REGISTRY
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import FaultKind
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.account import spans
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, sub_health, training
from workers.watcher import metrics as of_watcher
from workers.watcher.metrics import keep_counting
from workflows import metrics


def _value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def _counts() -> dict[str, float]:
    ended = {"mode": Mode.HOT_SWITCH.value, "verdict": Outcome.RECOVERED.value}
    return {
        "incidents": _value("rekindle_incidents_total", fault="sub_health", **ended),
        "times": _value("rekindle_incident_seconds_count", waited_for="nothing", **ended),
        "pauses": _value("rekindle_training_pause_seconds_count", mode=Mode.HOT_SWITCH.value),
        "orders": _value("rekindle_fault_to_first_order_seconds_count", source="other"),
        "phases": _value("rekindle_phase_seconds_count", mode=Mode.HOT_SWITCH.value, phase="training side prepares"),
    }


async def _another_process(world: Harness) -> None:
    """Replaces the control worker by one that remembers nothing."""
    await world.control.stop()
    metrics._counted.clear()
    await world.control.start()


async def test_an_incident_is_counted_once_although_workers_come_and_go(temporal: WorkflowEnvironment) -> None:
    """A worker that starts within the incident, and one that starts after it, replay the histories and count nothing again."""
    before = _counts()
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await _another_process(world)
        await world.look()
        await peer.pause()
        await world.incident()
        await _another_process(world)
        await world.status()
    assert {name: count - before[name] for name, count in _counts().items()} == dict.fromkeys(before, 1.0)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


async def test_an_order_is_unanswered_until_the_report(temporal: WorkflowEnvironment) -> None:
    """The gateway shows its stream, and the order as long as the training side has not reported."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        assert _value("rekindle_streams") == 1
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        assert _value("rekindle_orders_unanswered") == 1
        assert _value("rekindle_oldest_unanswered_seconds") > 0
        await peer.pause()
        await world.incident()
        assert _value("rekindle_orders_unanswered") == 0
        assert _value("rekindle_oldest_unanswered_seconds") == 0


async def test_jobs_and_running_modes_are_counted_from_the_list(temporal: WorkflowEnvironment) -> None:
    """A mode that runs for longer than its limits is counted as overdue too."""
    mode = Mode.HOT_SWITCH.value
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        counting = asyncio.create_task(keep_counting(world.client, Limits(), every=0.1))
        await _until(lambda: _value("rekindle_jobs", state="training") > 0)
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await _until(lambda: _value("rekindle_incidents_running", mode=mode) > 0)
        await _until(lambda: _value("rekindle_jobs", state="recovering") > 0)
        assert _value("rekindle_incidents_overdue", mode=mode) == 0
        counting.cancel()
        none = Limits.model_construct(None, **dict.fromkeys(Limits.model_fields, timedelta(0)))
        counting = asyncio.create_task(keep_counting(world.client, none, every=0.1))
        await _until(lambda: _value("rekindle_incidents_overdue", mode=mode) > 0)
        counting.cancel()
        await peer.pause()
        await world.incident()


async def test_series_of_rare_events_are_there_before_the_first_one() -> None:
    """`increase` does not see an event that comes with its series."""
    there = {(sample.name, *sorted(sample.labels.values())) for metric in REGISTRY.collect() for sample in metric.samples}
    for mode in (Mode.HOT_SWITCH, Mode.LINK_SWITCH, Mode.STRESS_TEST):
        assert ("rekindle_training_pause_seconds_count", mode) in there
    for mode in Mode:
        assert ("rekindle_incident_seconds_count", *sorted((mode, "nothing", "recovered"))) in there
    for mode, kind in product(spans.REPAIRS, FaultKind):
        assert ("rekindle_fault_to_step_seconds_count", *sorted((mode, kind))) in there
    for source in ("watcher", "training-side", "other"):
        assert ("rekindle_fault_to_first_order_seconds_count", source) in there
        assert ("rekindle_detection_seconds_count", source) in there


class Away:
    """Client of a Temporal service that does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)

    async def count_workflows(self, _: str) -> object:
        self.asked.release()
        raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")


async def test_numbers_that_are_not_renewed_are_shown_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert about their absence fires then. An old number would keep all alerts as they are."""
    monkeypatch.setattr(of_watcher, "OUTDATED", -1.0)
    of_watcher.JOBS.labels("training").set(3)
    of_watcher.RUNNING.labels("hot switch").set(1)
    of_watcher.NODES.labels(of_watcher.SET_ASIDE).set(1)
    away: Any = Away()
    counting = asyncio.create_task(keep_counting(away, Limits(), every=0.0))
    for _ in range(2):
        await away.asked.acquire()
    counting.cancel()
    assert REGISTRY.get_sample_value("rekindle_jobs", {"state": "training"}) is None
    assert REGISTRY.get_sample_value("rekindle_incidents_running", {"mode": "hot switch"}) is None
    assert REGISTRY.get_sample_value("rekindle_nodes", {"state": of_watcher.SET_ASIDE}) is None
