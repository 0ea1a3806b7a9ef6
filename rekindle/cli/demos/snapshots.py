"""Run of `rekindle demo snapshots`: a rank is lost whose shard no other rank has. Training goes back to snapshots in memory."""

from typing import Annotated, Any

from cyclopts import Parameter

from rekindle.cli.demos.commands import Common, check, check_rank, flag, run_demo
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.values import Whole
from rekindle.model.mode import Mode, Outcome

EVERY = 5
"""Number of steps between two snapshots."""

MARGIN = 2
"""Number of intervals by which training goes back at most. The last snapshots may still be on their way to the other node."""


class SnapshotsDemo(ProcessFaults):
    """Options of the demo."""

    mode: Mode = Mode.IN_PLACE
    fault: Strike = Strike.KILL
    lose_pod: bool = False

    @property
    def checkpoint_every(self) -> int:
        """Number of steps between two checkpoints: none is written."""
        return 0

    @property
    def script(self) -> str:
        """Module that is trained."""
        return "rekindle_training.examples.gpt_sharded"

    @property
    def kills_pods(self) -> bool:
        return self.lose_pod

    @property
    def spare_nodes(self) -> int:
        """Number of spare nodes: one for the pod that is replaced."""
        return int(self.lose_pod)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        return {**super().environment, "REKINDLE_SNAPSHOT_EVERY": str(EVERY)}

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job: none."""
        return {}

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        return ((Mode.PROCESS_RESCHEDULING if self.lose_pod else Mode.IN_PLACE, Outcome.RECOVERED),)

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether training went back to snapshots. There is no checkpoint to which it could go back."""
        tried = tuple((step["mode"], step["verdict"]) for step in result["ladder"])
        went_back = result["steps_lost"] <= MARGIN * EVERY and "snapshots" in result["reason"]
        return tried == self.expected and result["parameters_equal"] and went_back


async def snapshots(
    *,
    common: Common = Common(),  # noqa: B008
    rank: Annotated[Whole, Parameter(help="The rank that the fault affects, 0 to 3.")] = 2,
    lose_pod: Annotated[bool, flag("The whole pod of the rank is killed, with the snapshots in its memory.")] = False,
) -> int:
    """Train a small GPT whose shards no two ranks have (FSDP), kill a rank, go back to snapshots in memory, and compare.

    Each rank copies its state to memory after every 5th step, and to a rank on another node. No checkpoint is written.

    Example: rekindle demo snapshots --lose-pod
    """
    options = SnapshotsDemo(**common.options, rank=rank, lose_pod=lose_pod)
    check(options)
    check_rank(rank)
    return await run_demo(options, ProcessFaultScenario, "snapshots in memory", common)
