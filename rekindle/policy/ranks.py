"""Which rank a pod carries, and why the pods of a job cannot be told apart."""

from rekindle.model.cluster import JobView, Pod, PodPhase, PodRole
from rekindle.model.keys import POD_TYPE, RANK_INDEX, REPLICA_TYPE
from rekindle.model.sizes import LONGEST_RANK

WITHOUT_RANK = ("manager", "scheduler")
"""Replica types whose pods have no rank: the training side's manager, and the scheduler of MindSpore."""

TOLD_PROBLEMS = 20
"""Problems of a job that are told; those of all pods would fit into no payload."""
MORE_PROBLEMS = "there are more problems like these: they are told when these are over"


def problems(view: JobView) -> tuple[str, ...]:
    """Why no recovery could tell the job's pods apart, one line each, from the pods that live. A backup pod, one that ends and
    one that does not run yet (its rank may be written when it gets a node) are no problem."""
    if view.job is None:
        return ()
    last = view.job.spec.pods - 1
    names: dict[int, list[str]] = {}
    wrong: list[str] = []
    for pod in filter(_should_have_rank, view.pods):
        rank = rank_of(pod)
        if rank is not None and rank <= last:
            names.setdefault(rank, []).append(pod.metadata.name)
        elif words := _wrong_rank(pod, last):
            wrong.append(words)
    twice = [_twice(rank, sorted(holders)) for rank, holders in sorted(names.items()) if len(holders) > 1]
    found = (*sorted(wrong), *twice)
    return found if len(found) <= TOLD_PROBLEMS else (*found[:TOLD_PROBLEMS], MORE_PROBLEMS)


def _should_have_rank(pod: Pod) -> bool:
    """It lives, and is neither a backup nor of a replica type without ranks."""
    over = pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED) or pod.metadata.deletion_timestamp is not None
    backup = pod.metadata.annotations.get(POD_TYPE) == PodRole.BACKUP
    return not over and not backup and pod.metadata.labels.get(REPLICA_TYPE, "").lower() not in WITHOUT_RANK


def _wrong_rank(pod: Pod, last: int) -> str:
    name, written = pod.metadata.name, pod.metadata.annotations.get(RANK_INDEX, "")
    if rank_of(pod) is not None:
        return f"pod rank {written} of pod {name} is outside 0 to {last}"
    if written:
        return f"pod rank {written[:40]!r} of pod {name} is not a number from 0 to {last}"
    where = f"annotation {RANK_INDEX}, or what this installation reads in its place"
    missing = f"pod {name} carries no rank: expected {where}, with a number from 0 to {last}"
    return missing if pod.status.phase is PodPhase.RUNNING else ""


def _twice(rank: int, names: list[str]) -> str:
    if len(names) == 2:
        return f"pods {names[0]} and {names[1]} both carry pod rank {rank}"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"pods {', '.join(names[:3])}{more} all carry pod rank {rank}"


def rank_of(pod: Pod) -> int | None:
    """None: no number is written on it."""
    written = pod.metadata.annotations.get(RANK_INDEX, "")
    return int(written) if written.isascii() and written.isdecimal() and len(written) <= LONGEST_RANK else None
