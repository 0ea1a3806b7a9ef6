"""Run of `rekindle demo elastic`: nodes are lost without a spare, training goes on with fewer replicas, and they come back."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from cyclopts import Parameter

from rekindle.cli.demos import measure
from rekindle.cli.demos.commands import Common, check, run_demo
from rekindle.cli.demos.scenario import RANKS, Options, Scenario, Step, until
from rekindle.cli.values import Whole
from rekindle.errors import BadInput
from rekindle.model.incident import Incident
from rekindle.model.keys import ELASTIC, RANK_INDEX
from rekindle.model.mode import Mode, Outcome

LOST = 2
"""Number of nodes that are lost, one after the other."""

SMALL_STEPS = 5
"""Number of steps that are trained with each size."""


class ElasticDemo(Options):
    """Options of the demo."""

    pods: int = RANKS

    @property
    def steps_after(self) -> int:
        """Minimum number of steps after the first loss: those with each size, and those while the size changes."""
        return 9 * SMALL_STEPS

    @property
    def script(self) -> str:
        """Module that is trained."""
        return "rekindle_training.examples.gpt_elastic"

    @property
    def spare_nodes(self) -> int:
        """Number of spare nodes: none."""
        return 0

    @property
    def incidents(self) -> int:
        """Number of incidents of the job."""
        return LOST

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        return {ELASTIC: f"{RANKS - LOST}; wait=0"}

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job. It looks for free nodes each second."""
        return {**super().limits, "growAgain": 1}

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        return ((Mode.ELASTIC_TRAINING, Outcome.RECOVERED),) * LOST

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether no step was lost, and the job lost one replica after the other and got all back."""
        sizes = [one["replicas"] for one in result["replicas"]]
        shrunk = list(range(RANKS, RANKS - LOST - 1, -1))
        in_turn = sizes[: len(shrunk)] == shrunk and sizes[-1] == RANKS
        tried = [step for step in result["ladder"] if step["mode"] != Mode.SCALING]
        return super().is_met_by({**result, "ladder": tried}) and result["steps_lost"] == 0 and in_turn


class ElasticScenario(Scenario[ElasticDemo]):
    """Run of the elastic demo on a running stack."""

    _struck: list[float]

    async def strike(self) -> None:
        """Takes down one node after the other, and brings all back when training has gone on without them."""
        self._struck, down = [], (await self._nodes_without_manager())[-LOST:]
        for number, node in enumerate(down, 1):
            self.tell(Step(text=f"{node} is lost, and there is no spare"))
            self._struck.append(time.time())
            await self.cluster.take_down(node)
            await self.concluded(number)
            await self._some_steps()
        self.tell(Step(text=f"{' and '.join(down)} come back"))
        for node in down:
            await self.cluster.bring_up(node)
        await until(self._has_grown, "the return of all replicas")
        await self._some_steps()

    async def _nodes_without_manager(self) -> list[str]:
        """Returns the nodes of pods with ranks, by pod rank, without that of the manager, whose loss would be a second fault."""
        pods = await self.cluster.pods(self.job_id)
        on = {pod.metadata.annotations.get(RANK_INDEX, ""): pod.spec.node_name for pod in pods}
        manager = on.pop("")
        return [node for _, node in sorted(on.items()) if node != manager]

    async def _some_steps(self) -> None:
        await self.trains_until(measure.last_step(measure.read_steps(self.job_directory)) + SMALL_STEPS)

    async def _has_grown(self) -> bool:
        small, done = (await self._status()).state.small, self._drag_out()
        there = RANKS - len(small.missing) if small else RANKS
        self.tell(Step(text=f"{there} of {RANKS} replicas; training, step {done} of {self.options.steps}", step=done))
        return small is None

    async def tidy(self) -> None:
        """Brings all nodes back, however the run ended."""
        for node in await self.cluster.nodes():
            await self.cluster.bring_up(node.metadata.name)
        await super().tidy()

    def counts(self, incident: Incident) -> bool:
        """Returns whether a replica was lost. Attempts to grow are incidents too, or the beginning of one."""
        return any(verdict.mode is not Mode.SCALING for verdict in incident.ladder)

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the number of replicas over time, and what each loss and each return cost."""
        records = measure.read_steps(self.job_directory)
        left = [RANKS - number for number in range(1, LOST + 1)]
        shrunk = [measure.first_step_since(records, at, ranks) - at for at, ranks in zip(self._struck, left, strict=True)]
        sizes = measure.replicas(records, RANKS // self.options.pods)
        return {
            "replicas": [one.model_dump(mode="json") for one in sizes],
            "fault_to_step_each": [round(seconds, 4) for seconds in shrunk],
            "growth_pauses": [
                round(after.since - before.until, 4) for before, after in pairwise(sizes) if after.replicas > before.replicas
            ],
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EachInAPod(Common):
    """Options that all demos have. Each rank has a pod."""

    pods: Annotated[Whole, Parameter(help="4, with a rank each.")] = RANKS


async def elastic(*, common: EachInAPod = EachInAPod()) -> int:
    """Train a small GPT on 4 ranks in 4 pods, lose two nodes without a spare, go on with two, take both back, and compare.

    The data of the job are divided into shares. While pods are missing, the others compute their shares as well, so that the
    final parameters are those of an undisturbed run.

    Example: rekindle demo elastic --steps 100
    """
    if common.pods != RANKS:
        raise BadInput(f"--pods: {common.pods} is not accepted, each of the {RANKS} ranks has a pod; use {RANKS}")
    options = ElasticDemo(**common.options)
    check(options)
    return await run_demo(options, ElasticScenario, "elastic training", common)
