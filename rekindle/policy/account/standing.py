"""Decides since when training stands, for an account as of now. Pure."""

from rekindle.model.account import Account, Counted
from rekindle.model.fault import FaultKind
from rekindle.model.state import JobState
from rekindle.policy.account import ledger, summary


def account_of(state: JobState, now: float) -> Account:
    """Returns the account of a job with everything counted up to now, or to the end of the job, in seconds since the epoch."""
    account = ledger.as_of(ledger.registered(state.account, now), now, stands_since(state))
    return account if account.ranks else account.model_copy(update={"ranks": state.job.ranks})


def counted(state: JobState) -> Counted:
    """Returns what the time of a job was spent on, up to the last report of its training side."""
    current, account = state.account.current, ledger.as_reported(state.account)
    whole = summary.of_job(state.job.name, state.job.id, account)
    return Counted(
        namespace=state.job.namespace,
        name=state.job.name,
        seconds=account.seconds,
        goodput=whole.goodput,
        step=account.step,
        step_seconds=(current and current.step_seconds) or 0.0,
        final=account.final,
    )


def stands_since(state: JobState) -> float | None:
    """Returns the time since which training stands, as far as it is known. None: it trains."""
    if state.given_up:
        return state.given_up.since.timestamp()
    real = (one.fault for one in state.faults if one.fault.kind is not FaultKind.SUB_HEALTH and not one.judged)
    return min((moment.timestamp() for fault in real if (moment := fault.accepted_at or fault.seen_at)), default=None)
