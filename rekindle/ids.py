"""Every name on which processes agree: workflow ids, task queues, and the names of updates, signals, queries and activities."""

from rekindle.model.job import Job
from rekindle.model.recovery import Mode

CONTROL_QUEUE = "rekindle"
"""Task queue of workflows and of the activities of the control worker."""

DEPLOYMENT = "rekindle"
"""Temporal's worker deployment: all versions of the control worker together."""


def job_workflow(job_id: str) -> str:
    return f"job/{job_id}"


def recovery_workflow(job: Job, incident: int, mode: Mode) -> str:
    """Id that people read in a list: which job, which incident, which mode. The end of it tells jobs of one name apart."""
    begins, ends = _of_every_recovery(job)
    return f"{begins}{incident}-{_slug(mode)}{ends}"


def runs_mode(recovery: str, mode: Mode) -> bool:
    """Whether the id of a recovery says that it runs this mode."""
    return recovery.rsplit("/", 2)[-2].endswith(f"-{_slug(mode)}")


def _slug(mode: Mode) -> str:
    return mode.replace(" ", "-")


def is_recovery_of(job: Job, workflow_id: str) -> bool:
    """Whether a workflow id is that of a recovery of this job, and of no other."""
    begins, ends = _of_every_recovery(job)
    return workflow_id.startswith(begins) and workflow_id.endswith(ends)


def _of_every_recovery(job: Job) -> tuple[str, str]:
    return f"recovery/{job.namespace}.{job.name}/", f"/{job.id[:8]}"


def request_workflow(job_id: str, request: str) -> str:
    """Id for a mode that a client starts by itself; any other id works as well."""
    return f"request/{job_id}/{request}"


def gateway_queue(instance: str) -> str:
    """Queue of the one gateway process that holds a job's stream; stable over its restarts."""
    return f"gateway/{instance}"


class Workflows:
    TRAINING_JOB = "TrainingJob"
    HOT_SWITCH = "HotSwitch"
    JOB_RESCHEDULING = "JobRescheduling"


class Updates:
    """Updates of `TrainingJob`; `REPORT` is also an update of every mode."""

    REGISTER = "register"
    SIGHTING = "sighting"
    END = "end"
    ATTACH = "attach"
    DETACH = "detach"
    PROGRESS = "progress"
    REPORT = "report"
    REPORT_FAULTS = "report_faults"
    RECOVER = "recover"
    WITHDRAW = "withdraw"
    LIFT = "lift"


class Signals:
    """To the running mode, except for `VERDICT`."""

    ATTACHED = "attached"
    DETACHED = "detached"
    PROGRESSED = "progressed"
    FAULTS = "faults"
    """All that is broken now: what is gone from it has healed."""
    VERDICT = "verdict"
    """To `TrainingJob`, from a mode that was cancelled: a cancelled workflow has no result."""

    UPGRADED = "upgraded"
    """To `TrainingJob`: another version of the control worker is current."""


class Queries:
    STATUS = "status"
    CONTACT = "contact"


class ErrorTypes:
    """`ApplicationError.type` of what callers branch on."""

    JOB_UNKNOWN = "job.unknown"
    JOB_BUSY = "job.busy"
    JOB_ENDED = "job.ended"
    NOT_INITIALIZED = "job.not_initialized"
    NOT_REGISTERED = "job.not_registered"
    RECOVERY_OFF = "job.recovery_off"
    REPORT_UNEXPECTED = "report.unexpected"
    BETWEEN_MODES = "report.between_modes"
    REPORT_ELSEWHERE = "report.elsewhere"
    """The message is the id of the workflow that waits for it."""
    ATTACHMENT_KNOWN = "attachment.known"
    """The update would change nothing, and is not stored."""
    ATTACHMENT_OVER = "attachment.over"
    GIVEN_UP = "recovery.given_up"
    """A recovery gave up, its workflow failed; the verdict is in the details."""
    REQUEST_INVALID = "request.invalid"
    REQUEST_REFUSED = "request.refused"
