"""Disruption budgets hold the drain of those jobs whose policy asks for it, as their objects state it now."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from rekindle.errors import ClusterError, ClusterUnavailable, Forbidden, Unavailable
from rekindle.model import rule_file
from rekindle.model.cluster import ClusterEvent, JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.keys import DOWNGRADED, DRAIN, IGNORE_RULES, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.rules import Rules
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job
from workers.watcher import budgets
from workers.watcher.budgets import Budgets, Drains

NO_CORDONS = """
apiVersion: rekindle.io/v1
kind: Rules
spec:
  use: [plain]
  rules:
    - {name: cordons-are-nothing, cordoned: true, then: nothing}
"""


class Written(ScriptedCluster):
    """Records the requested budgets, and raises the given failures before it accepts any."""

    def __init__(self, *failures: ClusterError) -> None:
        super().__init__(a_job())
        self.evictions = self
        self.held: list[bool] = []
        self.known: dict[str, int] = {}
        """Budgets that exist, regardless of their creator."""
        self.failures = list(failures)

    async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.held.append(holds)

    async def budgets(self) -> dict[str, int]:
        return self.known

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        self.events.append(event)


async def trained(_: str) -> bool:
    return True


def a_job_object(policy: str, annotations: dict[str, str] | None = None, *, observe: bool = False) -> JobObject:
    metadata = ObjectMeta(name="demo", uid="job-1", labels={SUB_HEALTHY_STRATEGY: policy}, annotations=annotations or {})
    spec = JobSpec(pods=2, ranks_per_pod=2, template=PodTemplate(command=("train",)))
    return JobObject(metadata=metadata, spec=spec, observe=observe)


@asynccontextmanager
async def keeping(cluster: Written, jobs: dict[str, JobObject]) -> AsyncIterator[Callable[[list[bool]], Awaitable[None]]]:
    """Yields a function that waits until these budgets were requested, while the budgets of these jobs are kept."""
    kept = Budgets(cluster, Limits(), jobs.get, trained)
    running = asyncio.create_task(kept.run())

    async def looked_at(held: list[bool]) -> None:
        kept.look_at("job-1")
        async with asyncio.timeout(60):
            while cluster.held != held:
                await asyncio.sleep(0)

    yield looked_at
    running.cancel()


async def test_a_job_that_asks_for_nothing_any_more_holds_no_drain() -> None:
    """A job that no longer asks for recoveries holds no drain: its ranks would never be moved. This holds whether or not a
    watcher ran when its owner changed it."""
    cluster, jobs = Written(), {"job-1": a_job_object("hotSwitch")}
    kept = Budgets(cluster, Limits(), jobs.get, trained)
    running = asyncio.create_task(kept.run())

    async def until(held: list[bool]) -> None:
        async with asyncio.timeout(60):
            while cluster.held != held:
                await asyncio.sleep(0)

    kept.look_at("job-1")
    await until([True])
    del jobs["job-1"]
    kept.forget("job-1")
    await until([True, False])
    cluster.known = {"job-1": 2}
    kept.begin_anew()
    await until([True, False, False])
    running.cancel()


async def test_a_budget_that_is_gone_is_made_again() -> None:
    """A budget that a person has deleted is recreated when everything is listed again. An existing budget is left alone,
    regardless of its creator."""
    cluster = Written()
    kept = Budgets(cluster, Limits(), {"job-1": a_job_object("hotSwitch"), "job-2": a_job_object("hotSwitch")}.get, trained)
    cluster.known = {"job-2": 2}
    kept.look_at("job-1")
    kept.begin_anew()
    running = asyncio.create_task(kept.run())
    async with asyncio.timeout(60):
        while cluster.held != [True]:
            await asyncio.sleep(0)
        kept.begin_anew()
        while len(cluster.held) < 2:
            await asyncio.sleep(0)
        cluster.known = {"job-1": 2}
        kept.begin_anew()
        while len(cluster.held) < 3:
            await asyncio.sleep(0)
    assert cluster.held == [True, True, True]
    running.cancel()


async def test_no_job_waits_for_what_others_have_left_behind() -> None:
    """A tenant may write thousands of budgets of jobs that do not exist."""

    class Crowded(Written):
        async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
            await super().ensure_budget(job_id, holds=holds)
            if len(self.held) == 1:
                kept.look_at("job-1")

    cluster = Crowded()
    cluster.known = {"gone-1": -1, "gone-2": -1}
    kept = Budgets(cluster, Limits(), {"job-1": a_job_object("hotSwitch")}.get, trained)
    kept.begin_anew()
    running = asyncio.create_task(kept.run())
    async with asyncio.timeout(60):
        while len(cluster.held) < 3:
            await asyncio.sleep(0)
    assert cluster.held == [False, True, False]
    running.cancel()


async def test_the_budget_follows_what_the_job_s_object_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is written when the object changes, and again after a failure. A lowered policy and `let-go` hold nothing, and a
    job that grows holds its additional pods."""
    monkeypatch.setattr(budgets, "AGAIN", 0.0)
    jobs: dict[str, JobObject] = {}
    async with keeping(Written(ClusterUnavailable("not now")), jobs) as looked_at:
        jobs["job-1"] = a_job_object("hotSwitch")
        await looked_at([True])
        jobs["job-1"] = a_job_object("ignore", {DOWNGRADED: "no spare"})
        await looked_at([True, False])
        jobs["job-1"] = a_job_object("hotSwitch")
        await looked_at([True, False, True])
        grown = jobs["job-1"].spec.model_copy(update={"pods": 3})
        jobs["job-1"] = jobs["job-1"].model_copy(update={"spec": grown})
        await looked_at([True, False, True, True])
        jobs["job-1"] = a_job_object("hotSwitch", {DRAIN: "let-go"})
        await looked_at([True, False, True, True, False])


async def test_a_job_that_is_only_observed_holds_no_drain_any_more() -> None:
    """A job that is only observed holds no drain, because its ranks would never be moved. The budget of an earlier watcher that
    did not only observe is removed."""
    async with keeping(Written(), {"job-1": a_job_object("hotSwitch", observe=True)}) as looked_at:
        await looked_at([False])


@pytest.mark.parametrize(
    ("rules", "silenced"), [(rule_file.parse(NO_CORDONS), ""), (Rules(), ""), (rule_file.plain(), "plain/cordoned")]
)
async def test_a_job_for_which_a_cordon_means_nothing_holds_no_drain(rules: Rules, silenced: str) -> None:
    """A job for which a cordon has no effect holds no drain, because its ranks would never be moved. Either the rules or the job
    itself disable it."""
    cluster = Written()
    cluster.rules = rules
    async with keeping(cluster, {"job-1": a_job_object("hotSwitch", {IGNORE_RULES: silenced})}) as looked_at:
        await looked_at([False])


async def test_a_budget_that_the_cluster_refuses_is_said_once_and_tried_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Policies that forbid such budgets are common, and a thousand jobs would ask every five seconds."""
    pauses, loop = list[float](), asyncio.get_running_loop()

    def at_once(pause: float, look: Callable[[str], None], job_id: str) -> asyncio.TimerHandle:
        pauses.append(pause)
        return loop.call_at(0, look, job_id)

    monkeypatch.setattr(loop, "call_later", at_once)
    refusal = Forbidden("admission webhook denied the request: maxUnavailable must not be 0")
    cluster = Written(*[refusal] * 9, ClusterUnavailable("not now"))
    async with keeping(cluster, {"job-1": a_job_object("hotSwitch")}) as looked_at:
        await looked_at([True])
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert [(event.name, event.reason) for event in cluster.events] == [("demo", "DrainNotHeld")]
    assert "maxUnavailable must not be 0" in cluster.events[0].message


async def test_a_job_that_has_never_trained_holds_no_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has never trained holds no drain, because its ranks could not be moved. The question is repeated until it has
    trained."""
    monkeypatch.setattr(budgets, "EARNED", 0.001)
    monkeypatch.setattr(budgets, "LONGEST_UNEARNED", 0.001)
    cluster, answers = Written(), [False, None, Unavailable("away"), False, True]

    async def has_trained(_: str) -> bool | None:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    kept = Budgets(cluster, Limits(), {"job-1": a_job_object("hotSwitch")}.get, has_trained)
    running = asyncio.create_task(kept.run())
    kept.look_at("job-1")
    async with asyncio.timeout(60):
        while True not in cluster.held:
            assert not answers or True not in cluster.held
            await asyncio.sleep(0.001)
    assert not answers
    running.cancel()


async def test_the_budget_of_an_earlier_watcher_stays_while_a_job_is_recovered() -> None:
    """The phase of such a job does not show whether it has trained."""
    cluster = Written()
    cluster.known = {"job-1": 2}

    async def has_trained(_: str) -> None:
        return None

    kept = Budgets(cluster, Limits(), {"job-1": a_job_object("hotSwitch")}.get, has_trained)
    running = asyncio.create_task(kept.run())
    kept.begin_anew()
    for _ in range(100):
        await asyncio.sleep(0)
    assert cluster.held == []
    running.cancel()


async def test_a_drain_is_held_as_long_as_the_installation_allows() -> None:
    """Afterwards the pods may be evicted, and an event of the job reports that. The next drain is held again."""
    cluster, job, drained = Written(), a_job_object("hotSwitch"), True
    drains = Drains(lambda _: drained, timedelta(seconds=0.01))
    kept = Budgets(cluster, Limits(), {"job-1": job}.get, trained, drains)
    running = asyncio.create_task(kept.run())

    async def until(held: list[bool]) -> None:
        async with asyncio.timeout(60):
            while cluster.held != held:
                await asyncio.sleep(0.001)

    kept.look_at("job-1")
    await until([True, False])
    assert [(event.reason, "as long as this installation allows" in event.message) for event in cluster.events] == [
        ("DrainNotHeld", True)
    ]
    drained = False
    kept.look_at("job-1")
    await until([True, False, True])
    running.cancel()
