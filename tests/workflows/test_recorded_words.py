"""Words of recorded recoveries: reset-config, annotation and labels change as ClusterD changed them, in the same order."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import reset_config
from activities.pod_recreation import MakingAnew
from rekindle.model.contract import Words
from rekindle.model.job import Job, Trait
from rekindle.model.keys import PLATFORM_STRATEGY, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from tests.fakes.fault_dialogue import STOPPED
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import TheirCluster
from tests.fakes.scripted_contract import ScriptedContract
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, register, sub_health, training
from tests.workflows.support.openings import SHORT

TRAITS = (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS, Trait.CONTRACT_WORDS)

CLEAR, FLUSHES = "", "flushing"


def faulty(rank: int) -> str:
    return f"rank {rank} faulty"


class ObjectsOfAJob(ScriptedContract):
    """Keeps what readers see: each change of the reset-config, of the annotation and of the labels, oldest first."""

    def __init__(self) -> None:
        super().__init__(restarts=0)
        self.config: Object = {"metadata": {"labels": {"reset": "true"}}, "data": {"reset.json": "{}"}}
        self.resets: list[str] = []
        self.statuses: list[str] = []
        self.labels: set[str] = set()
        self.told: list[Mapping[str, str]] = []
        self.when_told = self.told.append

    async def ensure_words(self, job_id: str, words: Words) -> int | None:
        content = reset_config.changed(self.config, words, 1)
        self.config["data"].update(content.data or {})
        self._add(self.resets, _said(json.loads(self.config["data"]["reset.json"])))
        self._add(self.statuses, words.status or "")
        self.labels |= set(words.labels.values())
        await super().ensure_words(job_id, words)
        return content.restarts

    @staticmethod
    def _add(seen: list[str], one: str) -> None:
        if one != (seen[-1] if seen else ""):
            seen.append(one)


def _said(content: dict[str, Any]) -> str:
    """Returns a reset-config in few words."""
    ranks = [faulty(one["RankId"]) for one in content["RankList"]]
    flags = [FLUSHES] if content["FaultFlushing"] else []
    restarts = [f"restart {content['RetryTime']}"] if content["RetryTime"] else []
    assert content["GracefulExit"] == 0
    return ", ".join([*flags, *ranks, *restarts])


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recovery delete pods at once, since no scheduler deletes them here."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)


@asynccontextmanager
async def recorded(
    env: WorkflowEnvironment, allows: str, script: Script, **changes: Any
) -> AsyncIterator[tuple[Harness, ScriptedPeer, ObjectsOfAJob]]:
    """Runs a job of two pods with one rank each, as the recorded ones."""
    annotations = {RECOVER_STRATEGY: allows, **changes.pop("annotations", {})}
    limits = Limits(settle=timedelta(0), release=timedelta(0), report_lost=SHORT)
    job: Job = a_mindio_job(pods=2, ranks_per_pod=1, traits=TRAITS, annotations=annotations, limits=limits, **changes)
    cluster = TheirCluster(job, nodes=5)
    contract = cluster.contract = ObjectsOfAJob()
    async with training(env, job, script, cluster) as (world, peer):
        await world.look()
        await register(world.client, job)
        await world.settled(lambda status: not status.state.unswept)
        contract.resets.clear()
        peer.script.before_status = contract.is_up_to_date
        yield world, peer, contract


async def swept(world: Harness) -> None:
    await world.incident()
    await world.settled(lambda status: not status.state.unswept)


async def stops(peer: ScriptedPeer, contract: ObjectsOfAJob) -> None:
    """Reports that training has stopped, after the faults were seen to be collected."""
    await peer.until(lambda: peer.state == STOPPED)
    await contract.until(lambda words: words.flushing)
    await peer.report_stopped()


@pytest.mark.parametrize("platform", [False, True], ids=["02 and 03, an exception or an end", "09k, a platform decides"])
async def test_a_recovery(temporal: WorkflowEnvironment, platform: bool) -> None:
    """The faulty rank is named between the collection of the faults and the result. A platform confirms it before."""
    annotations = {PLATFORM_STRATEGY: ""} if platform else {}
    async with recorded(temporal, "recover,dump", Script(stops=False), annotations=annotations) as (world, peer, contract):
        if platform:
            said = {"ProcessRecoverStrategy": "recover", "ProcessResultFault": "", "RankTableReady": "true"}
            contract.annotations.update(said)
        await peer.report_fault(1)
        await stops(peer, contract)
        await swept(world)
        assert contract.resets == [FLUSHES, faulty(1), CLEAR]
        assert contract.statuses == ["recover-success"]
        assert contract.labels == {"software"}
        assert contract.told == ([{"ProcessConfirmFault": "1:1"}] if platform else [])


@pytest.mark.parametrize("kind", ["0", "2"], ids=["05, memory", "09j, network"])
async def test_a_retry(temporal: WorkflowEnvironment, kind: str) -> None:
    """Ranks are not named, as none ends."""
    async with recorded(temporal, "retry,recover,dump", Script(stops=False)) as (world, peer, contract):
        await peer.report_fault(1, kind=kind)
        await stops(peer, contract)
        if kind == "2":
            await world.phase("the step is repeated")
            await world.skip(timedelta(seconds=3))
        await swept(world)
        assert contract.resets == [FLUSHES, CLEAR]
        assert contract.statuses == ["retry-success"]
        assert contract.labels == {"retry-fault"}


async def test_a_repair_that_fails(temporal: WorkflowEnvironment) -> None:
    """07a and 08c: the state is saved, and the restart is counted."""
    script = Script(stops=False, statuses=[406])
    async with recorded(temporal, "recover,dump", script) as (world, peer, contract):
        await peer.report_fault(1)
        await stops(peer, contract)
        await world.phase(RESUMES)
        await peer.cut()
        await peer.attach()
        await world.phase(RESUMES)
        await world.skip(timedelta(seconds=6))
        await swept(world)
        assert contract.resets == [FLUSHES, faulty(1), "restart 1"]
        assert contract.statuses == ["recover-failed", "dump-success"]
        assert contract.labels == {"software"}


async def test_a_hot_switch(temporal: WorkflowEnvironment) -> None:
    """06: neither a rank nor a result is named."""
    script = Script()
    async with recorded(temporal, "recover,dump", script, sub_health=a_job().sub_health) as (world, _, contract):
        await world.fault(sub_health().model_copy(update={"ranks": (1,)}))
        await swept(world)
        assert (contract.resets, contract.statuses, contract.labels) == ([], [], set())
