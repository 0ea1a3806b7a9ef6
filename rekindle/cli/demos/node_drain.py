"""Run of `rekindle demo drain`: one node under a job is drained, or all are in turn, as in an upgrade of the cluster."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from rekindle.cli.demos.commands import STANDBY, Common, check, check_pod_rank, flag, run_demo
from rekindle.cli.demos.scenario import Step, until
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.values import Whole
from rekindle.drains import Drains
from rekindle.errors import BadInput
from rekindle.model.draining import Where
from rekindle.model.incident import Incident
from rekindle.model.keys import RANK_INDEX
from rekindle.model.mode import Mode, Outcome

SETTLES = 2.0
"""Seconds until a cordon counts as a fault, by the rule `plain/cordoned`."""


class DrainDemo(SubHealth):
    """Options of the drain demo."""

    all_nodes: bool = False

    @property
    def incidents(self) -> int:
        """Number of incidents of the job. Each node that is drained has a pod of the job by then."""
        return self.pods + self.spare_nodes if self.all_nodes else 1

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        return ((Mode.HOT_SWITCH, Outcome.IGNORED if self.no_spare else Outcome.RECOVERED),) * self.incidents

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether no step was lost, and all ranks left. Without a spare node the drain must wait."""
        return super().is_met_by(result) and result["steps_lost"] == 0 and result["drained"] is not self.no_spare


class DrainScenario(HotSwitchScenario):
    """One run of the demo."""

    options: DrainDemo
    drained: dict[str, bool]

    def step_ms(self, loading: float) -> float:
        """Returns the duration of a step, in milliseconds. Training must outlast all drains at its own pace."""
        return super().step_ms(loading + SETTLES) * self.options.incidents

    async def strike(self) -> None:
        """Drains the nodes one after the other.

        Each is uncordoned before the next is drained, as it is the spare node for that.
        """
        assert self._rekindle is not None
        self.drained, drains = {}, Drains(self._rekindle)
        for node in await self._nodes():
            self.drained[node] = await self._drain(drains, node)
            await drains.undo(node)

    async def _nodes(self) -> list[str]:
        """Returns the names of the nodes to drain: that of the pod, or all.

        Nodes with ranks come first, so that the spare node has some by then.
        """
        pods = [pod for pod in await self.cluster.pods(self.job_id) if RANK_INDEX in pod.metadata.annotations]
        on = {pod.metadata.annotations[RANK_INDEX]: pod.spec.node_name for pod in pods}
        if not self.options.all_nodes:
            return [on[str(self.options.pod_rank)]]
        return list(dict.fromkeys([*on.values(), *(node.metadata.name for node in await self.cluster.nodes())]))

    async def _drain(self, drains: Drains, node: str) -> bool:
        """Drains a node and returns whether all ranks left it. Without a spare node they wait."""
        await drains.begin(node)
        left = False

        async def has_settled() -> bool:
            nonlocal left
            now, done = await drains.look(node), self._drag_out()
            self.tell(Step(text=f"{node} is drained; training, step {done} of {self.options.steps}", step=done))
            left = now.drained
            return left or any(row.where is Where.WAITS for row in now.rows)

        await until(has_settled, f"the ranks to leave {node}")
        return left

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds whether all ranks left the drained nodes, and the names of these nodes."""
        return {**super().more(incidents), "drained": all(self.drained.values()), "nodes": list(self.drained)}

    async def tidy(self) -> None:
        """Uncordons the nodes."""
        for node in await self.cluster.nodes():
            await self.cluster.cordon(node.metadata.name, cordoned=False)
        await super().tidy()


async def drain(
    *,
    common: Common = Common(),  # noqa: B008
    pod_rank: Annotated[Whole, Parameter(help="The pod whose node is drained.")] = 1,
    all_nodes: Annotated[bool, flag("Drain every node, one after the other, as an upgrade of the cluster does.")] = False,
    no_spare: Annotated[
        bool, flag("There is no free node: training goes on, and the drain waits until it is taken back.")
    ] = False,
    standby: Annotated[bool, STANDBY] = False,
) -> int:
    """Train a small GPT on 4 ranks, drain a node under it, and compare with an undisturbed run.

    It is what `rekindle drain` does. On Kubernetes `kubectl drain` is held back meanwhile by the job's disruption budget.

    Example: rekindle demo drain --all-nodes
    """
    options = DrainDemo(**common.options, pod_rank=pod_rank, all_nodes=all_nodes, no_spare=no_spare, standby=standby)
    check(options)
    check_pod_rank(options)
    if all_nodes and no_spare:
        raise BadInput("--all-nodes, --no-spare: use one of them, without a spare the first drain waits")
    return await run_demo(options, DrainScenario, "drain", common)
