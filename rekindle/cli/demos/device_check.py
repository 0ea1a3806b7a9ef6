"""Run of `rekindle demo stress-test`: a node computes wrong results, a test finds it, and training goes on without it."""

import json
import time
from collections.abc import Sequence
from typing import Any

from rekindle.cli.demos.commands import Common, check, run_demo
from rekindle.cli.demos.scenario import STEP_MS, Options, Scenario, Step
from rekindle.cli.output import Format, show_tested
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import Op, StressRequest
from rekindle.model.verdict import Verdict
from rekindle.policy.detection import isolation

OUTLASTED = 12.0
"""Minimum seconds for which training lasts after the test, as a pod on another node has to load."""


class StressDemo(Options):
    """Options of the stress test demo."""

    node: str = "node-1"
    """Node that computes wrong results; empty: none does."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the job's pods."""
        return {"REKINDLE_INJECT": json.dumps([{"fault": "wrong-product", "node": self.node}])} if self.node else {}

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        """Modes that are expected to be tried, each with its outcome."""
        if not self.node:
            return ((Mode.STRESS_TEST, Outcome.RECOVERED),)
        return (Mode.STRESS_TEST, Outcome.ESCALATE), (Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED)

    def is_met_by(self, result: dict[str, Any]) -> bool:
        """Returns whether exactly this node was isolated, no rank is on it any more, and no step was lost."""
        isolated = [self.node] if self.node else []
        left = [rank["after"]["node"] for rank in result["switched"]]
        found = result["isolated"] == isolated and self.node not in left
        return super().is_met_by(result) and found and result["steps_lost"] == 0


class StressScenario(Scenario[StressDemo]):
    """One run of the demo."""

    _began = 0.0
    _verdict: Verdict | None = None

    def step_ms(self, loading: float) -> float:
        """Returns the duration of a step, in milliseconds. Training must not end before its pods have moved."""
        return max(STEP_MS, 1000 * OUTLASTED / (self.options.steps - self.options.at_step))

    async def strike(self) -> None:
        """Requests the test and waits for its verdict."""
        assert self._rekindle is not None
        self.tell(Step(text="all nodes of the job are tested"))
        self._began = time.time()
        ops = StressRequest(all_nodes=(Op.COMPUTE, Op.MESSAGES))
        request = ModeRequest(job=self.job_id, stress=ops, requested_by="the demo")
        handle = await self._rekindle.begin(Mode.STRESS_TEST, request)
        self._verdict = await self._rekindle.verdict(handle)

    def since(self, incident: Incident) -> float:
        """Returns when the test was requested, in seconds since the epoch."""
        return self._began

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the results of the test, and the nodes that were isolated."""
        tested = self._verdict.tested if self._verdict else None
        return {
            "isolated": list(tested.findings.isolate) if tested else [],
            "tested": tested.model_dump(mode="json") if tested else None,
        }

    async def tidy(self) -> None:
        """Releases isolated nodes."""
        for node in await self.cluster.nodes():
            if change := isolation.release(node.metadata.annotations):
                await self.cluster.annotate_node(node.metadata.name, change)
        await super().tidy()


class ShownScenario(StressScenario):
    """Stress test demo that also prints the table of results, for people."""

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        if self._verdict and self._verdict.tested:
            show_tested(self._verdict.tested)
        return super().more(incidents)


async def stress_test(*, common: Common = Common()) -> int:  # noqa: B008
    """Train a small GPT on 4 ranks, one node of which computes wrongly, test all nodes, and compare with an undisturbed run.

    The node is found and isolated, and the pod on it goes to a spare node.

    Example: rekindle demo stress-test --pods 4
    """
    options = StressDemo(**common.options)
    check(options)
    scenario = StressScenario if common.output is Format.JSON else ShownScenario
    return await run_demo(options, scenario, "stress test", common)
