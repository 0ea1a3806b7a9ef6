"""Marks of an account: earlier states of it, so that the time since any moment can be counted. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from rekindle.model.account import Account, Bucket, Mark

MOST = 64
"""Maximum number of marks. Of a month, each is then a fifth older than the next one."""


def marked(account: Account) -> Account:
    """Marks the present state. If there are too many marks, drops the one whose neighbours are closest for its age."""
    last = account.marks[-1].until if account.marks else account.since
    if account.until <= last:
        return account
    marks = [*account.marks, Mark(until=account.until, seconds=account.seconds)]
    if len(marks) > MOST:
        del marks[_least_needed(marks)]
    return account.model_copy(update={"marks": tuple(marks)})


def _least_needed(marks: Sequence[Mark]) -> int:
    now = marks[-1].until

    def width(index: int) -> float:
        return (marks[index + 1].until - marks[index - 1].until) / (now - marks[index].until)

    return min(range(1, len(marks) - 1), key=width)


def within(account: Account, since: float) -> dict[Bucket, float]:
    """Returns the seconds by bucket from a moment to the end of the account. Their sum is that time.

    Between two marks the time of each bucket is taken to be spread evenly.
    """
    begins = max(since, account.since)
    states = (Mark(until=account.since, seconds={}), *account.marks, Mark(until=account.until, seconds=account.seconds))
    left = {bucket: account.seconds.get(bucket, 0.0) for bucket in Bucket}
    for one, other in pairwise(states):
        if one.until >= begins:
            break
        share = min((begins - one.until) / (other.until - one.until), 1.0) if other.until > one.until else 1.0
        for bucket in Bucket:
            left[bucket] -= share * (other.seconds.get(bucket, 0.0) - one.seconds.get(bucket, 0.0))
    return {bucket: max(spent, 0.0) for bucket, spent in left.items()}
