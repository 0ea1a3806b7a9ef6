"""Checks whether a job trains if its last report did not come, before the job is restarted for that.

A client may not repeat a report that was lost in an outage, and running pods prove nothing, as agents outlive their ranks. So
training itself is asked: it stops, receives an announcement without a fault, and repeats a step, which takes some seconds. A
client whose repair has failed exits instead. Source: tried with real clients.
"""

from collections.abc import Callable

from temporalio import workflow

from rekindle.model.dialogue import Report, ReportKind, Strategy
from rekindle.model.fault import Fault
from rekindle.model.mode import Outcome
from rekindle.model.situation import Situation
from rekindle.model.verdict import Training
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks
from workflows.mode import Ends, ModeWorkflow
from workflows.opening import open_recovery

LOST = "its report was lost in an outage"

TRIES = 3
"""Number of times that training is asked, as answers may be lost too."""


async def asked_whether_it_trains(mode: ModeWorkflow, is_mended: Callable[[Fault], bool], why: str = LOST) -> str:
    """Returns what training reports when it has repeated a step.

    Args:
        is_mended: returns whether a fault is over if training goes on, even if its source still shows it.
        why: reason why it is asked.

    Raises:
        Ends: training does not repeat a step; only a restart of the job is left.
    """
    before, mode.is_mended, mode.is_asked = mode.situation, is_mended, True
    report = None
    for _ in range(TRIES):
        report = await _answer(mode, Situation(tried=before.tried, leaving=before.leaving), why)
        if report or not mode.may_be_lost():
            break
    if report is None or report.code:
        said = f"{report.code} {report.info}".rstrip() if report else mode.lost_manager or "it says nothing"
        raise _restart(why, f"training repeats no step: {said}")
    mode.went_on_at, mode.is_asked = mode.answered_at, False  # ranks that it names were only announced, and are not faulty
    mode.situation = mode.situation.with_(announced=before.announced)
    workflow.logger.info("training queried", extra={"job": mode.context.job.id, "info": report.info})
    return f"{why}; training was asked, and repeated a step: {report.info}"


async def _answer(mode: ModeWorkflow, situation: Situation, why: str) -> Report | None:
    """Returns the report about the repeated step; None: there is none, or it was lost too."""
    job, situation = mode.context.job, await open_recovery(mode, situation)
    if Strategy.RETRY not in situation.offers:
        raise _cannot_repeat(situation, why)
    mode.situation = situation.with_(ordered=(Strategy.RETRY,), answer_by=None)
    pods = faulty_ranks.pods_of(job, situation.announced)
    order = orders.change_strategy(job.id, situation.attempt, Strategy.RETRY, situation.announced, pods)
    async with mode.phase("training repeats a step"):
        if not await mode.order(order, mode.patience):
            raise _restart(why, mode.lost_manager or "training could not be told to repeat its step")

        def is_decided() -> bool:
            return mode.has_report(ReportKind.STATUS) or bool(mode.lost_manager)

        await mode.until(lambda: is_decided() or mode.may_be_lost(), job.limits.retry, "wait until training has repeated a step")
        if mode.may_be_lost():
            await mode.until(is_decided, job.limits.status_lost, "the report of the step may be lost")
        await mode.comes_back(is_decided)
        return mode.next_report(ReportKind.STATUS)


def _cannot_repeat(situation: Situation, why: str) -> Ends:
    """Returns the end of a mode whose training cannot prove that it goes on, as some training sides cannot with missing replicas.
    It may still save its state."""
    if situation.faulty:
        return Ends(Outcome.ESCALATE, f"{why}, and training cannot repeat its step")
    if Strategy.DUMP in situation.offers:
        return Ends(Outcome.ESCALATE, f"{why}, and training can only save its state", training=Training.SAVES)
    return _restart(why, "training cannot repeat its step")


def _restart(why: str, reason: str) -> Ends:
    return Ends(Outcome.ESCALATE, f"{why}, and {reason}", training=Training.LOST)
