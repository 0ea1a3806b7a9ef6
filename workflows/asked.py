"""Whether a MindIO job trains whose last report was lost in an outage. Its client repeats none, and pods that run prove nothing:
agents outlive their ranks.

Training is asked itself: it stops, is told that nobody is faulty, and repeats a step, which takes some seconds. A client whose
repair has failed leaves instead. Source: tried with MindIO.
"""

from collections.abc import Callable

from temporalio import workflow

from rekindle.model.fault import Fault
from rekindle.model.recovery import Mode, Outcome, ReportKind, Situation, Strategy
from rekindle.policy import faulty, orders
from workflows.mode import Ends, ModeWorkflow
from workflows.opening import open_recovery

LOST = "its report was lost in an outage"


async def asked_whether_it_trains(mode: ModeWorkflow, is_mended: Callable[[Fault], bool]) -> str:
    """Returns what training says when it has repeated a step.

    Args:
        is_mended: tells whether a fault is mended if training goes on, whoever shows it still.

    Raises:
        Ends: it does not; only a restart of the job is left.
    """
    job, before = mode.context.job, mode.situation
    mode.is_mended = is_mended
    situation = await open_recovery(mode, Situation(tried=before.tried, leaving=before.leaving))
    if Strategy.RETRY not in situation.offers:
        raise _restart("training cannot repeat its step")
    mode.situation = situation.with_(ordered=(Strategy.RETRY,), answer_by=None)
    pods = faulty.pods_of(job, situation.announced)
    order = orders.change_strategy(job.id, situation.attempt, Strategy.RETRY, situation.announced, pods)
    async with mode.phase("training repeats a step"):
        if not await mode.order(order, mode.patience):
            raise _restart(mode.lost_manager or "training could not be told to repeat its step")
        is_decided = lambda: mode.has_report(ReportKind.STATUS) or bool(mode.lost_manager)  # noqa: E731
        await mode.until(is_decided, job.limits.retry, "wait until training has repeated a step")
        report = mode.next_report(ReportKind.STATUS)
        if report is None or report.code:
            said = f"{report.code} {report.info}".rstrip() if report else mode.lost_manager or "it says nothing"
            raise _restart(f"training repeats no step: {said}")
    mode.went_on_at = mode.answered_at  # it has named what was announced to it, which is no fault
    mode.situation = mode.situation.with_(announced=before.announced)
    workflow.logger.info("training asked", extra={"job": job.id, "info": report.info})
    return f"{LOST}; training was asked, and repeated a step: {report.info}"


def _restart(reason: str) -> Ends:
    return Ends(Outcome.ESCALATE, f"{LOST}, and {reason}", next_mode=Mode.JOB_RESCHEDULING)
