"""The driver does to workflows what a server does: time passes, activities are repeated, killed workers are replayed."""

import asyncio
from datetime import timedelta
from typing import ClassVar

import pytest
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from tests.model.world.driver import START, Driver
from tests.model.world.driver_activities import Activity
from tests.model.world.driver_runs import Answer, Broken


@workflow.defn
class Patient:
    """Waits for a word, then asks the world once, and gives up after a minute."""

    changed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, name: str) -> str:
        if self.changed:
            await asyncio.sleep(1)
        await workflow.wait_condition(lambda: bool(self.words))
        try:
            answer: str = await workflow.execute_activity(
                "ask",
                name,
                schedule_to_close_timeout=timedelta(minutes=1),
                start_to_close_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1)),
                result_type=str,
            )
        except ActivityError as error:
            return f"failed: {error.cause}"
        return answer

    @workflow.update
    def say(self, word: str) -> None:
        self.words.append(word)

    @say.validator
    def _is_a_word(self, word: str) -> None:
        if not word:
            raise ApplicationError("no word", type="empty")


@workflow.defn
class Stubborn:
    """Continues for a while after a request to cancel, and counts such requests."""

    @workflow.run
    async def run(self, name: str) -> str:
        told, until = 0, workflow.now() + timedelta(seconds=10)
        while (left := until - workflow.now()) > timedelta(0):
            try:
                await asyncio.sleep(left.total_seconds())
            except asyncio.CancelledError:
                told += 1
        return f"told {told}"


class World:
    """Fails some times before it answers; negative: never answers."""

    def __init__(self, driver: Driver, failures: int) -> None:
        self.calls, self._failures = 0, failures
        driver.perform = self.perform

    def perform(self, activity: Activity, attempt: int) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            activity.fail(attempt, ApplicationError("not now"))
        elif self._failures >= 0:
            activity.complete(attempt, f"hello {activity.argument(str)}")


def _driven(failures: int) -> tuple[Driver, World, list[Answer]]:
    driver = Driver([Patient])
    world = World(driver, failures)
    answers: list[Answer] = []
    driver.start("Patient", "p", "ada")
    for word in ("", "go"):
        driver.update("p", "say", [word], f"say {word}", answers.append)
    return driver, world, answers


def _run(driver: Driver) -> str:
    while driver.step(START + timedelta(hours=1)):
        pass
    run = driver.runs["p"]
    return run.result.data.decode() if run.result else run.status


def test_updates_are_validated_and_a_failed_activity_is_repeated() -> None:
    """The bad word is rejected with its type; two failures cost one and two seconds."""
    driver, world, answers = _driven(failures=2)
    assert _run(driver) == '"hello ada"'
    assert sorted(answer.kind for answer in answers) == ["", "empty"]
    assert world.calls == 3
    ended = driver.runs["p"].ended
    assert ended is not None
    assert timedelta(seconds=3) <= ended - START < timedelta(seconds=4)


def test_an_activity_that_never_answers_times_out() -> None:
    """Each attempt has its limit, and all of them together have theirs."""
    driver, world, _ = _driven(failures=-1)
    assert _run(driver) == '"failed: activity timed out"'
    assert world.calls > 3


def test_a_killed_worker_is_followed_by_one_that_replays() -> None:
    """The run goes on where it was."""
    driver, _, _ = _driven(failures=3)
    while driver.now < START + timedelta(seconds=2):
        driver.step(START + timedelta(hours=1))
    driver.kill_worker(2.0)
    assert _run(driver) == '"hello ada"'


def test_a_workflow_is_told_to_cancel_once() -> None:
    """The real server refuses the second cancellation."""
    driver = Driver([Stubborn])
    driver.start("Stubborn", "p", "ada")
    for seconds in (1.0, 2.0):
        driver.after(seconds, lambda: driver.cancel("p"))
    assert _run(driver) == '"told 1"'


def test_a_workflow_that_replays_to_something_else_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that a running workflow can notice is noticed."""
    driver, _, _ = _driven(failures=3)
    while driver.now < START + timedelta(seconds=2):
        driver.step(START + timedelta(hours=1))
    driver.kill_worker(0.0)
    monkeypatch.setattr(Patient, "changed", True)  # as another version of the code would be
    with pytest.raises(Broken):
        _run(driver)
