"""Every name on which processes agree: workflow ids, task queues, and the names of updates, signals, queries and activities."""

CONTROL_QUEUE = "rekindle"
"""Task queue of workflows and of the activities of the control worker."""

DEPLOYMENT = "rekindle"
"""Temporal's worker deployment: all versions of the control worker together."""


def job_workflow(job_id: str) -> str:
    return f"job/{job_id}"


def recovery_workflow(job_id: str) -> str:
    return f"recovery/{job_id}"


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
    INITIALIZE = "initialize"
    REGISTER_CLIENT = "register_client"
    ATTACH = "attach"
    DETACH = "detach"
    REPORT = "report"
    FAULT = "fault"
    CLEARED = "cleared"
    PROBLEMS = "problems"
    PROGRESS = "progress"
    REQUEST = "request"
    LIFT = "lift"
    END = "end"


class Signals:
    ATTACHED = "attached"
    PROGRESSED = "progressed"
    POD_FAILED = "pod_failed"
    REAL_FAULT = "real_fault"
    VERDICT = "verdict"
    WITHDRAWN = "withdrawn"
    """To `TrainingJob`, from a front that was cancelled."""

    UPGRADED = "upgraded"
    """To `TrainingJob`: another version of the control worker is current."""


class Queries:
    STATUS = "status"


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
    REQUEST_INVALID = "request.invalid"
    REQUEST_REFUSED = "request.refused"
