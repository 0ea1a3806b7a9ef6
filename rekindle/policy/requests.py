"""What is wrong with a request or a fault, before anything is started. Used by the validators of `TrainingJob`."""

from rekindle.model.fault import Fault
from rekindle.model.job import Job
from rekindle.model.recovery import Mode, ModeRequest
from rekindle.model.state import JobState
from rekindle.policy import ladder, observing


def invalid(state: JobState, request: ModeRequest) -> str:
    """The field that is wrong, and what is accepted; empty: all are right."""
    if request.mode is not Mode.HOT_SWITCH:
        return ""
    last = state.job.pods - 1
    if request.pod_rank is None:
        return f"pod_rank: missing, accepted are 0 to {last}"
    if not 0 <= request.pod_rank <= last:
        return f"pod_rank: {request.pod_rank} is not a pod rank of job {state.job.name}, accepted are 0 to {last}"
    return ""


def refused(state: JobState, request: ModeRequest) -> str:
    """Why a well-formed request cannot be served now; empty: it can."""
    if state.job.observe:
        return observing.ONLY
    if state.problems:
        return ladder.blocked(state)
    if request.mode is not Mode.HOT_SWITCH or request.pod_rank is None:
        return ""
    healthy = request.pod_rank not in {pod.pod_rank for pod in state.sub_healthy}
    if healthy and not request.force:
        return f"pod rank {request.pod_rank} is healthy: nobody reported it as sub-healthy (force moves it all the same)"
    return ladder.for_hot_switch(state, request.pod_rank).refused


def fault_problem(job: Job, fault: Fault) -> str:
    """The field of a fault that does not fit the job; empty: all do."""
    for rank in fault.ranks:
        if not 0 <= rank < job.ranks:
            return f"ranks: {rank} is not a rank of job {job.name}, accepted are 0 to {job.ranks - 1}"
    for pod_rank in fault.pod_ranks:
        if not 0 <= pod_rank < job.pods:
            return f"pod_ranks: {pod_rank} is not a pod rank of job {job.name}, accepted are 0 to {job.pods - 1}"
    return ""
