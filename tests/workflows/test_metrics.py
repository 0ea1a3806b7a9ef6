"""Metrics of incidents, as the control worker counts them."""

from prometheus_client import REGISTRY
from temporalio.testing import WorkflowEnvironment

from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, sub_health, training
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
