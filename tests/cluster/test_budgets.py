"""Which jobs hold a drain: by the policy in force, as their objects say it now."""

import asyncio

import pytest

from rekindle.errors import ClusterUnavailable
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.keys import DOWNGRADED, DRAIN, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from tests.support.harness import a_job
from tests.support.scripted_cluster import ScriptedCluster
from workers.watcher import budgets
from workers.watcher.budgets import Budgets


class Written(ScriptedCluster):
    """Remembers what budgets were asked for; the first request is not answered."""

    def __init__(self) -> None:
        super().__init__(a_job())
        self.held: list[bool] = []
        self.answers = False

    async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
        if not self.answers:
            self.answers = True
            raise ClusterUnavailable("not now")
        self.held.append(holds)


def a_job_object(policy: str, **annotations: str) -> JobObject:
    metadata = ObjectMeta(name="demo", uid="job-1", labels={SUB_HEALTHY_STRATEGY: policy}, annotations=annotations)
    return JobObject(metadata=metadata, spec=JobSpec(pods=2, ranks_per_pod=2, template=PodTemplate(command=("train",))))


async def test_the_budget_follows_what_the_job_s_object_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written where it is news, again where nobody answered; a policy that was lowered holds nothing, nor does `let-go`."""
    monkeypatch.setattr(budgets, "AGAIN", 0.0)
    cluster, jobs = Written(), {"job-1": a_job_object("hotSwitch")}
    kept = Budgets(cluster, Limits(), jobs.get)
    running = asyncio.create_task(kept.run())

    async def after(job: JobObject, held: list[bool]) -> None:
        jobs["job-1"] = job
        kept.look_at("job-1")
        async with asyncio.timeout(10):
            while cluster.held != held:
                await asyncio.sleep(0)

    await after(a_job_object("hotSwitch"), [True])
    await after(a_job_object("ignore", **{DOWNGRADED: "no spare"}), [True, False])
    await after(a_job_object("hotSwitch"), [True, False, True])
    await after(a_job_object("hotSwitch", **{DRAIN: "let-go"}), [True, False, True, False])
    running.cancel()


async def test_a_job_that_is_not_looked_after_any_more_holds_no_drain() -> None:
    """Its owner took the words away, or an administrator only observes from now on: nobody would move its ranks. An
    earlier watcher may have written the budget."""
    cluster, jobs = Written(), {"job-1": a_job_object("hotSwitch"), "job-2": a_job_object("hotSwitch")}
    cluster.answers = True
    kept = Budgets(cluster, Limits(), jobs.get)
    running = asyncio.create_task(kept.run())

    async def until(held: list[bool]) -> None:
        async with asyncio.timeout(10):
            while cluster.held != held:
                await asyncio.sleep(0)

    kept.look_at("job-1")
    await until([True])
    del jobs["job-1"]
    kept.forget("job-1")
    await until([True, False])
    jobs["job-2"] = jobs["job-2"].model_copy(update={"observe": True})
    for _ in range(2):
        kept.look_at("job-2")
    await until([True, False, False])
    running.cancel()
