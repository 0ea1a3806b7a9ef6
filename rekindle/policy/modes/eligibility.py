"""Decides whether a mode may be tried. The reasons against it are part of the verdict."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from rekindle.model.bounds import numbered
from rekindle.model.dialogue import FaultRank, Strategy
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Capability, Framework, Job, Trait
from rekindle.model.keys import ELASTIC, POD_RESCHEDULING, RECOVER_STRATEGY
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import elastic, faulty_ranks
from rekindle.policy.training_sides.row import Check, Readiness
from rekindle.policy.training_sides.table import side_of

MOST_REPLACED = 10
"""Maximum number of pods that one process rescheduling replaces. If more are lost, the whole job restarts. Source: ours, as the
replaced system's bound for sub-healthy pods."""

MOST_RETRIES = 10
"""Maximum number of online retries of one job within the limit `bounds_within`. Beyond it, memory whose faults come back is
abandoned. Source: ours."""

MOST_REPAIRS = 50
"""Maximum number of recoveries of processes of one job within the limit `bounds_within`, by all modes. A script that ends its
process at the same step again and again leads to a restart, of which there are few. Source: ours; a recovery takes less than a
second."""

REPAIRS = (Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.ELASTIC_TRAINING)
"""Modes that this bound concerns."""


def readiness(state: JobState) -> Readiness:
    """Returns the state of the training side. If it does not report its first step, the step counts as completed. That of an
    earlier life says nothing after a restart that was given up, also if a person has aborted another try."""
    stopped = state.again is not None or (state.given_up is not None and state.given_up.stopped)
    return Readiness(
        attached=state.attachment is not None,
        completed_a_step=(state.progress is not None and not stopped) or not side_of(state.job).reports_its_steps,
        lost_manager=state.manager_lost,
    )


def _rank_0(job: Job, pod_rank: int, ready: Readiness) -> str:
    replaceable = pod_rank != 0 or job.can(Capability.REPLACE_RANK_0)
    return "" if replaceable else "pod rank 0 cannot be replaced by this training side (capability replace_rank_0)"


def _watchdog(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "the watchdog is on: it would end a paused training" if job.can(Capability.WATCHDOG) else ""


def _multimodal(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "multimodal models are not supported" if job.can(Capability.MULTIMODAL) else ""


def _movable(job: Job, pod_rank: int, ready: Readiness) -> str:
    return f"its pods cannot be moved: {job.unmovable}" if job.unmovable else ""


def _graceful(job: Job, pod_rank: int, ready: Readiness) -> str:
    return GRACEFUL if job.graceful_tolerance else ""


def _framework(job: Job, pod_rank: int, ready: Readiness) -> str:
    fits = job.framework in (Framework.PYTORCH, Framework.MINDSPORE)
    return "" if fits else f"framework {job.framework} is not supported (accepted: pytorch, mindspore)"


def _attached(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if ready.attached else "the training side is not attached to a gateway"


def _first_step(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if ready.completed_a_step else "no training step was completed yet"


def _manager(job: Job, pod_rank: int, ready: Readiness) -> str:
    return f"its manager was lost: {ready.lost_manager}" if ready.lost_manager else ""


def _job_checks(job: Job) -> tuple[Check, ...]:
    """Returns the checks of the job itself, whose results do not change over time."""
    return (_graceful, _rank_0, _watchdog, _multimodal, *side_of(job).checks, _movable, _framework)


READY_CHECKS: dict[Check, str] = {
    _attached: "the training side is attached to a gateway",
    _first_step: "a training step was completed",
    _manager: "its manager is the one that its ranks registered with",
}
"""Checks with the conditions that they require. The conditions change over time. They are unknown for a job that is only
observed, since its training side is connected to another system."""


ALWAYS_READY = Readiness(attached=True, completed_a_step=True, lost_manager="")

NOT_FAULTY = "nothing of it is known to be faulty"
NOT_WANTED = f"its owner does not ask for it (label {POD_RESCHEDULING}=on)"
NO_STANDBY = f"no standby runs, and its owner does not want to wait for a spare node (annotation {ELASTIC})"
GRACEFUL = (
    "hotReset=1 asks for graceful fault tolerance, which has reached its end of life and excludes recoveries of processes: the "
    "job is only restarted"
)
RECOVERY_OFF = "none of process-recover-enable=on, recover-strategy and subHealthyStrategy=hotSwitch is set on the job"


def recovery_is_on(job: Job) -> bool:
    """Returns whether a manager of this job may register (code 403 otherwise). Source: the wire contract, Init."""
    return side_of(job).registers(job)


def never(job: Job, pod_rank: int) -> tuple[str, ...]:
    """Returns why this pod can never be hot-switched. Empty: it can be at some time."""
    return tuple(reason for check in _job_checks(job) if (reason := check(job, pod_rank, ALWAYS_READY)))


def hot_switch(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why this pod cannot be hot-switched now. Empty: it can be."""
    if pod_rank is None:
        return ("a hot switch moves one pod rank",)
    job, ready = state.job, readiness(state)
    checks = _job_checks(job) if job.observe else (*_job_checks(job), *READY_CHECKS)
    return tuple(reason for check in checks if (reason := check(job, pod_rank, ready)))


# ---- operations on a job that trains


def operation(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why training cannot be paused for a link switch or a stress test now. Empty: it can be. Source: the limits of link
    failover, and ClusterD's."""
    job = state.job
    checks = {
        RECOVERY_OFF: not recovery_is_on(job),
        "MindSpore needs TASKD_PROCESS_ENABLE=on in its pods (capability taskd_process)": (
            job.framework is Framework.MINDSPORE and not job.can(Capability.TASKD_PROCESS)
        ),
    }
    return (*(reason for reason, holds in checks.items() if holds), *_not_ready(state))


def scaling(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why the number of pods cannot be changed now, whatever it is to be. Empty: it can be."""
    fixed = () if state.job.elastic or state.small else (elastic.NOT_ELASTIC,)  # a small job may get its pods back
    made_by_others = state.small is not None and bool(state.small.there)
    unmovable = (f"its pods cannot be moved: {state.job.unmovable}",) if state.job.unmovable and not made_by_others else ()
    faulty = ("something of it is faulty, which is recovered first",) if real_faults(state) else ()
    return (*fixed, *operation(state, pod_rank), *unmovable, *faulty)


def _not_ready(state: JobState) -> tuple[str, ...]:
    ready = readiness(state)
    return tuple(reason for check in READY_CHECKS if (reason := check(state.job, 0, ready)))


# ---- recovery of processes


def online_retry(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why repeating the step is no solution for the present faults. Empty: it is."""
    needs_more = not faulty_ranks.is_retryable(_faulty(state))
    reasons = ("not all of its faults may go away when the step is repeated",) if needs_more else ()
    return (*_process_level(state, Strategy.RETRY), *reasons, *_repeated_too_often(state, _latest(state)))


def repeated_step(state: JobState) -> tuple[str, ...]:
    """Returns why training that was paused, and cannot be ordered to continue, cannot repeat its step. Empty: it can."""
    broken = ("something of it is broken, which is mended",) if real_faults(state) else ()
    return (*_process_level(state, Strategy.RETRY, stands=True), *broken)


def bounds_reached(state: JobState, mode: Mode, now: datetime) -> tuple[str, ...]:
    """Returns the bounds that would speak against a mode for a fault that comes now. Empty: there are none."""
    if mode not in REPAIRS:
        return ()
    return (*_repaired_too_often(state, now), *(_repeated_too_often(state, now) if mode is Mode.ONLINE_RETRY else ()))


def _repaired_too_often(state: JobState, now: datetime | None) -> tuple[str, ...]:
    words = f"its processes were recovered {MOST_REPAIRS} times within {_within(state)}, and their faults come back"
    return (words,) if _lately(state, state.repairs, now) >= MOST_REPAIRS else ()


def _repeated_too_often(state: JobState, now: datetime | None) -> tuple[str, ...]:
    """Returns that many faults before were repaired by an online retry. Those before a person wanted another try do not count, as
    with all bounds."""
    again = state.tried_again
    retried = [
        one.started_at
        for one in state.history
        if one.ladder[-1].mode is Mode.ONLINE_RETRY and not is_behind_an_operation(one.ladder)
    ]
    later = (moment for moment in retried if again is None or moment > again)
    words = f"its step was repeated {MOST_RETRIES} times within {_within(state)}, and its faults come back"
    return (words,) if _lately(state, later, now) >= MOST_RETRIES else ()


def is_behind_an_operation(ladder: Sequence[Verdict]) -> bool:
    """Returns whether training repeated its step because an operation had failed: nothing of the job was faulty."""
    return len(ladder) > 1 and ladder[-2].training is Training.WHOLE


def _latest(state: JobState) -> datetime | None:
    """Returns when the latest present fault came. None: there is none."""
    return max((fault.accepted_at for fault in real_faults(state) if fault.accepted_at), default=None)


def _lately(state: JobState, moments: Iterable[datetime], now: datetime | None) -> int:
    """Returns how many of the times are less than the limit `bounds_within` before a fault."""
    return 0 if now is None else sum(now - moment < _within(state) for moment in moments)


def _within(state: JobState) -> timedelta:
    return state.job.limits.bounds_within


def in_place(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why the faulty processes cannot be restarted in their pods. Empty: they can be."""
    lost = faulty_ranks.lost_pods(state.job, real_faults(state))
    gone = (f"no pod is left of {numbered('pod rank', lost)}",) if lost else ()
    return (*_process_level(state, faulty_ranks.IN_PLACE), *gone, *_has_left(state))


def process_rescheduling(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why other pods cannot take over the ranks of faulty ones. Empty: they can."""
    pods, side = faulty_ranks.pods_of(state.job, _faulty(state)), side_of(state.job)
    reasons = {
        f"pod rank 0 is faulty, and {side.label}'s manager is in its pod": _loses_its_manager(state.job, pods),
        f"with {side.label} the job's controller recreates pods, and a {state.job.kind} has none that does": _is_nobodys(
            state.job
        ),
        f"its pods cannot be moved: {state.job.unmovable}": bool(state.job.unmovable),
        too_many(len(pods)): len(pods) > MOST_REPLACED,
        "every pod is faulty": len({*pods, *elastic.missing_of(state.small)}) >= state.job.pods,
        NO_STANDBY: elastic.takes_only_standbys(state.job, state.small, pods) and _goes_on_small(state),
    }
    words = (reason for reason, holds in reasons.items() if holds)
    return (*_process_level(state, Strategy.RECOVER), *words, *_has_left(state))


def _has_left(state: JobState) -> tuple[str, ...]:
    """Returns that faulty ranks are missing by what is known, so that no process may take them: it would be in the way of their
    return. An order to go on without them is right, even if they were back already."""
    pods = set(faulty_ranks.pods_of(state.job, _faulty(state))) & set(elastic.missing_of(state.small))
    return (f"{numbered('pod rank', sorted(pods))} has left the job, which goes on without",) if pods else ()


def _goes_on_small(state: JobState) -> bool:
    """Returns whether no standby runs, and training can go on without the faulty pods."""
    return not (elastic.stands_by(state) or elastic_training(state, None))


def elastic_training(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why training cannot go on without the faulty pods. Empty: it can."""
    job, pods = state.job, faulty_ranks.pods_of(state.job, _faulty(state))
    words = f"pod rank 0 is faulty, and {side_of(job).label}'s manager is in its pod"
    manager = words if _loses_its_manager(job, pods) else ""
    return (*filter(None, (elastic.too_few(job, state.small, pods), manager)), *_process_level(state, ""))


def dying_gasp(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why ranks that are left cannot save their state before the job is restarted. Empty: they can."""
    away = ("its training side is not attached to a gateway",) if state.attachment is None else ()
    return (*_reached(state, Strategy.DUMP), *away, *job_rescheduling(state, pod_rank))


def pod_rescheduling(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why the faulty pods cannot be replaced while the processes of all others start again. Empty: they can be."""
    job, side = state.job, side_of(state.job)
    pods = faulty_ranks.pods_of(job, _faulty(state))
    reasons = {
        NOT_WANTED: not job.pod_rescheduling,
        f"{side.label} does not start processes again in their pods": not side.restarts_in_pods,
        f"its pods cannot be moved: {job.unmovable}": bool(job.unmovable),
        NOT_FAULTY: not pods,
        f"pod rank 0 is faulty, and {side.label}'s manager is in its pod": _loses_its_manager(job, pods),
        too_many(len(pods)): len(pods) > MOST_REPLACED,
        "every pod is faulty": len(pods) >= job.pods,
        "replicas of it are missing, which a restart of all pods brings back": state.small is not None,
        "its training side is not attached to a gateway": state.attachment is None,
    }
    return (*(reason for reason, holds in reasons.items() if holds), *_reached(state))


def too_many(pods: int) -> str:
    return f"{pods} pods are faulty, accepted are at most {MOST_REPLACED}"


def _loses_its_manager(job: Job, pods: tuple[int, ...]) -> bool:
    return 0 in pods and not (side_of(job).successor_continues or job.can(Capability.REPLACE_RANK_0))


def _is_nobodys(job: Job) -> bool:
    """Returns whether no component recreates single pods of a job whose training side needs that."""
    return side_of(job).controller_recreates and not job.has(Trait.CONTROLLER_RECREATES)


def _process_level(state: JobState, strategy: str, *, stands: bool = False) -> tuple[str, ...]:
    """Returns why processes cannot be recovered by this strategy. A missing stream is no reason: the opening waits for it.

    Args:
        stands: True if training was paused, so that a recovery needs no fault.
    """
    checks = {
        NOT_FAULTY: not (stands or _faulty(state) or _is_to_be_asked(state, strategy)),
    }
    words = (reason for reason, holds in checks.items() if holds)
    return (*_reached(state, strategy), *words, *_repaired_too_often(state, _latest(state)))


def _reached(state: JobState, strategy: str = "") -> tuple[str, ...]:
    """Returns why no rank of the job can be given this strategy. Empty: some can.

    Args:
        strategy: word of the annotation that allows it. Empty: no word is needed.
    """
    job, ready = state.job, readiness(state)
    checks = {
        GRACEFUL: job.graceful_tolerance,
        RECOVERY_OFF: not recovery_is_on(job),
        f"its owner does not allow {strategy} (annotation {RECOVER_STRATEGY})": bool(strategy)
        and not faulty_ranks.allows(job, strategy),
        "every pod is lost": faulty_ranks.is_nobody_left(job, real_faults(state), state.small),
        "its training side has never attached to a gateway": not state.introduced,
        "no training step was completed yet": not ready.completed_a_step,
        f"its manager was lost: {ready.lost_manager}": bool(ready.lost_manager),
    }
    return tuple(reason for reason, holds in checks.items() if holds)


def _is_to_be_asked(state: JobState, strategy: str) -> bool:
    """Returns whether a fault report may be lost, so that an online retry is to find out. Healthy training repeats a step and
    reports it."""
    return strategy == Strategy.RETRY and state.unsure_since is not None


def _faulty(state: JobState) -> list[FaultRank]:
    return [rank for fault in real_faults(state) for rank in faulty_ranks.ranks_of(state.job, fault)]


def real_faults(state: JobState) -> list[Fault]:
    """Returns the present faults without sub-healths and faults of backup pods. The mode that started a backup pod handles the
    latter."""
    here = (one.fault for one in state.faults if one.is_here)
    return [fault for fault in here if fault.kind is not FaultKind.SUB_HEALTH and not fault.backup]


def job_rescheduling(state: JobState, pod_rank: int | None) -> tuple[str, ...]:
    """Returns why the whole job cannot be restarted. Empty: it can be."""
    return (state.job.no_restart,) if state.job.no_restart else ()


def provided(state: JobState, pod_rank: int) -> tuple[str, ...]:
    """Returns the further conditions of a hot switch, for a job that is only observed. Empty for other jobs."""
    job, ready = state.job, readiness(state)
    return tuple(words for check, words in READY_CHECKS.items() if check(job, pod_rank, ready)) if job.observe else ()
