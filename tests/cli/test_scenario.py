"""A demo waits for its standbys before anything happens to its job, and shows what it has measured."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from rekindle.cli.demos.commands import _show
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.demos.scenario import Step
from rekindle.cli.output import Format
from rekindle.cli.stack import Addresses, Stack
from rekindle.cli.terminal import console
from rekindle.cluster_client import ClusterClient
from rekindle.errors import Unavailable
from rekindle.model.cluster import ObjectMeta, Pod, PodPhase, PodSpec, PodStatus
from rekindle.model.mode import Mode


class Cluster(ClusterClient):
    """A cluster with a job whose standby has written some text."""

    written = ""

    async def pods(self, job: str | None = None) -> list[Pod]:
        metadata = ObjectMeta(name="gpt-standby-0", annotations={"podType": "standby"})
        return [Pod(metadata=metadata, spec=PodSpec(command=("rekindle-train",)), status=PodStatus(phase=PodPhase.RUNNING))]

    async def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> AsyncGenerator[str, None]:
        yield self.written


@pytest.mark.parametrize(
    ("written", "ready"),
    [((), False), (("spare parked spare=a",), False), (("spare parked spare=a", "spare parked spare=b"), True)],
)
async def test_a_standby_stands_by_when_all_of_its_processes_have_loaded(
    tmp_path: Path, written: Sequence[str], ready: bool
) -> None:
    """A pod that merely runs would be taken before it has loaded, and the demo would show the cost of a new pod."""
    told: list[Step] = []
    scenario = _scenario(tmp_path, told)
    cluster = scenario.cluster = Cluster(tmp_path / "socket")
    cluster.written = "\n".join(written)
    assert await scenario.stands_by() is ready
    assert told[0].text.startswith("a standby loads")


async def test_a_demo_whose_steps_run_out_says_so_at_once(tmp_path: Path) -> None:
    """A demo waits for no step that will never be trained."""
    scenario = _scenario(tmp_path, [])
    with pytest.raises(Unavailable, match="give it more than 200 steps"):
        await scenario.trains_until(scenario.options.steps + 1)


def _scenario(directory: Path, told: list[Step]) -> ProcessFaultScenario:
    options = ProcessFaults(mode=Mode.PROCESS_RESCHEDULING, fault=Strike.KILL, standby=True)
    addresses = Addresses("", "", "", str(directory / "socket"), str(directory))
    return ProcessFaultScenario(options, Stack(addresses, print), directory, told.append)


def test_the_panel_of_a_demo_has_its_goodput() -> None:
    """The text has the same number as the JSON. Reasons are shown as they are, whatever they contain."""
    result = {
        "verdict": "recovered",
        "reason": "[/bold] moved [red]",
        "ladder": [],
        "parameters_equal": True,
        "steps_lost": 0,
        "pause_seconds": 0.2,
        "goodput": 0.8123,
        "seconds": {"training": 16.25, "start-up": 3.75},
        "first_order_seconds": None,
        "total_seconds": 1.0,
        "switched": [],
        "policy_after": "hotSwitch",
        "cluster": "local",
        "workflow_id": "recovery/1",
        "temporal_ui": "http://127.0.0.1:8233",
    }
    with console.capture() as page:
        _show(result, "hot switch", Format.TEXT)
    assert "81.2% of 20.0 s, start-up included" in page.get()
    assert "recovered: [/bold] moved [red]" in page.get()
