"""A recovery that an earlier workflow of the job had started, when that one was lost: it goes to its own end first.

Called by `TrainingJob` before it begins anything, so that two recoveries never work on one job.
"""

from temporalio import workflow

from rekindle.model.activity_values import RecoveryEnd, RememberRequest
from rekindle.policy.cases import Case
from workflows import memory, steps
from workflows.dialogue import cancel_and_forget
from workflows.incident import Memory, look
from workflows.journal import Journal


async def is_settled(known: Memory, journal: Journal, case: Case) -> bool:
    """Whether the lost recovery came to an end of its own, or the job has ended. Otherwise the last mode sweeps what it left
    behind."""
    recovery = known.state.lost_recovery
    waiting = steps.await_recovery_end(recovery)
    await workflow.wait_condition(lambda: waiting.done() or bool(known.state.ended))
    if not waiting.done():
        cancel_and_forget(waiting)
        return True
    end = await waiting
    what = "it is settled" if end.settled else "what it left behind is swept"
    words = f"{recovery} ran when the job's workflow was lost; {what}: {end.words}"
    journal.soon(journal.record(known.state, "RecoveryFound", words, warning=not end.settled))
    if end.settled:
        await _conclude(known, journal, case, end)
    return end.settled


async def _conclude(known: Memory, journal: Journal, case: Case, end: RecoveryEnd) -> None:
    """What it did is remembered as if this workflow had started it."""
    before = known.state
    known.state = memory.settled(before, case, end.verdict, workflow.now())
    if known.state.policy is not before.policy:
        await journal.publish_policy(lambda: known.state)
    job_id = known.state.job.id
    journal.soon(journal.remember(lambda: RememberRequest(job_id=job_id, memory=memory.to_remember(known.state, ""))))
    if end.verdict:
        await look(known, journal)  # the pods have changed, and by whom was not known until now
