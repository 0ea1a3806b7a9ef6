"""Determines the pod rank of each pod of a job, and problems that keep the pods of a job from being told apart."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rekindle.model.cluster import Pod, PodPhase, PodRole
from rekindle.model.job import Job
from rekindle.model.keys import GENERATION, POD_TYPE, RANK_INDEX, RANKS_PER_POD, REPLICA_TYPE
from rekindle.model.sizes import LONGEST_RANK

WITHOUT_RANK = ("manager", "scheduler")
"""Replica types whose pods have no rank: the training side's manager, and the scheduler of MindSpore."""

TWICE = "carry pod rank"
OF_COUNT = "the training side has"
TOLD_PROBLEMS = 20
"""Maximum number of problems that are reported for a job. Those of all pods would exceed a payload."""
MORE_PROBLEMS = "there are more problems like these: they are told when these are over"
MORE_TWICE = f"more pods {TWICE} of another one: they are told when these problems are over"


class RankedPod(NamedTuple):
    """A pod that should carry a pod rank."""

    pod: Pod
    rank: int | None
    """Pod rank as it is written, even if the job does not have it. None: no number is written."""

    backup: bool
    """True if the pod has not taken over yet. The pod that holds the rank is another one."""

    lives: bool
    """True if the pod waits for a node or runs, and is not being deleted."""

    failed: bool
    """True if the pod failed by itself. A pod that is being deleted may end with an error, which does not count."""

    holds: bool
    """True if the pod holds its rank. A succeeded pod keeps its rank, so that a job that trains to its end loses none."""


def rank_of(pod: Pod) -> int | None:
    """Returns the pod rank that is written on a pod. None: no number is written."""
    written = pod.metadata.annotations.get(RANK_INDEX, "")
    return int(written) if written.isascii() and written.isdecimal() and len(written) <= LONGEST_RANK else None


def is_over(pod: Pod) -> bool:
    """Returns whether all containers of the pod have ended for good."""
    return pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def is_standby(pod: Pod) -> bool:
    """Returns whether the pod is a standby that waits for a rank. A pod with a rank is no standby, whatever its type says."""
    return pod.metadata.annotations.get(POD_TYPE) == PodRole.STANDBY and RANK_INDEX not in pod.metadata.annotations


def ranked(pods: Iterable[Pod]) -> list[RankedPod]:
    """Returns the pods of replica types that have ranks, without standbys."""
    found = []
    for pod in pods:
        metadata, phase = pod.metadata, pod.status.phase
        if metadata.labels.get(REPLICA_TYPE, "").lower() in WITHOUT_RANK or is_standby(pod):
            continue
        stays = metadata.deletion_timestamp is None
        backup = metadata.annotations.get(POD_TYPE) == PodRole.BACKUP
        lives = stays and (phase is PodPhase.RUNNING or phase is PodPhase.PENDING)
        failed = stays and phase is PodPhase.FAILED
        found.append(RankedPod(pod, rank_of(pod), backup, lives, failed, holds=stays and not failed and not backup))
    return found


def last_holder(pods: Iterable[Pod], rank: int, lost_nodes: Collection[str]) -> Pod | None:
    """Returns the pod that last held a rank. A pod that failed or is on a lost node is preferred, then the youngest. None: there
    is no such pod."""
    own = [one for one in ranked(pods) if one.rank == rank and not one.backup]
    return max(own, key=lambda one: _lostness(one, lost_nodes)).pod if own else None


def _lostness(one: RankedPod, lost_nodes: Collection[str]) -> tuple[bool, str, str]:
    born = one.pod.metadata.creation_timestamp
    lost = not one.lives or one.pod.spec.node_name in lost_nodes
    return lost, born.isoformat() if born else "", one.pod.metadata.uid


def latest_generation(pods: Iterable[Pod]) -> str:
    """Returns the generation of the job that the youngest pod carries."""
    youngest = max(pods, key=lambda pod: pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC))
    return youngest.metadata.labels.get(GENERATION, "0")


def problems(pods: Iterable[RankedPod], count: int) -> tuple[str, ...]:
    """Returns the reasons, one line each, why the live pods of a job cannot be told apart. Backup pods and pods that are ending
    do not count. Neither do pods that do not run yet: the rank may be written when the pod gets a node.

    Args:
        count: number of pods with ranks of the job.
    """
    first: dict[int, RankedPod] = {}
    more: dict[int, list[RankedPod]] = {}
    wrong: list[str] = []
    for one in pods:
        if not one.lives or one.backup:
            continue
        if one.rank is None or one.rank >= count:
            wrong.append(_wrong_rank(one, count - 1))
        elif first.setdefault(one.rank, one) is not one:
            more.setdefault(one.rank, [first[one.rank]]).append(one)
    found = (*sorted(filter(None, wrong)), *(_claimed(rank, more[rank]) for rank in sorted(more)))
    if len(found) <= TOLD_PROBLEMS:
        return found
    only_twice = all(map(ends_with_a_restart, found[TOLD_PROBLEMS:]))
    return (*found[:TOLD_PROBLEMS], MORE_TWICE if only_twice else MORE_PROBLEMS)


def _wrong_rank(one: RankedPod, last: int) -> str:
    """Returns the problem of a pod without a valid rank. Empty: the pod may get its rank with its node."""
    name, written = one.pod.metadata.name, one.pod.metadata.annotations.get(RANK_INDEX, "")
    if one.rank is not None:
        return f"pod rank {written} of pod {name} is outside 0 to {last}"
    if written:
        return f"pod rank {written[:40]!r} of pod {name} is not a number from 0 to {last}"
    where = f"annotation {RANK_INDEX}, or what this installation reads in its place"
    missing = f"pod {name} carries no rank: expected {where}, with a number from 0 to {last}"
    return missing if one.pod.status.phase is PodPhase.RUNNING else ""


def _claimed(rank: int, pods: Sequence[RankedPod]) -> str:
    """Returns the problem of a rank that several pods carry."""
    names = sorted(one.pod.metadata.name for one in pods)
    if len(names) == 2:
        return f"pods {names[0]} and {names[1]} both {TWICE} {rank}"
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"pods {', '.join(names[:3])}{others} all {TWICE} {rank}"


def count_problem(job: Job, ranks: int) -> str:
    """Returns why the ranks of pods are unknown: the training side counts another number of ranks than the job's pods have.
    Empty: both counts are equal, or that of the training side is unknown.

    Args:
        ranks: number of ranks that the training side counts; 0: unknown.
    """
    if ranks in (0, job.ranks):
        return ""
    right = f": set annotation {RANKS_PER_POD} to {ranks // job.pods}" if ranks % job.pods == 0 else ""
    return f"{OF_COUNT} {ranks} ranks, but {job.pods} pods with {job.ranks_per_pod} ranks each have {job.ranks}{right}"


def is_of_count(problem: str) -> bool:
    """Returns whether the problem is that ranks are counted in two ways."""
    return problem.startswith(OF_COUNT)


def ends_with_a_restart(problem: str) -> bool:
    """Returns whether a restart of all pods may begin despite a problem: several pods carry one rank, or ranks are counted in two
    ways."""
    return TWICE in problem or is_of_count(problem)
