"""Names that several processes use: workflow ids, task queues, and the names of updates, signals, queries and activities."""

import re
from collections.abc import Sequence
from hashlib import sha256

from rekindle.model.job import Job
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode

CONTROL_QUEUE = "rekindle"
"""Task queue of workflows and of the activities of the control worker."""

RECOVERY = "recovery/"
"""Prefix of the ids of recoveries."""

LINK_FAILOVER = "link-failover/"
"""Prefix of the ids of maintenances."""

SWITCH_UPGRADE = "switch-upgrade/"
"""Prefix of the ids of switch upgrades."""

LONGEST_DEVICES = 40
"""Maximum length of the devices in the id of a maintenance."""

SPARES = "spares"
"""Id of the workflow that decides which job gets a spare node."""

DEPLOYMENT = "rekindle"
"""Temporal worker deployment of all versions of the control worker."""


def job_workflow(job_id: str) -> str:
    return f"job/{job_id}"


def recovery_workflow(job: Job, incident: int, mode: Mode) -> str:
    """Returns an id that people read in a list: job, incident and mode. Its end distinguishes jobs of the same name."""
    return f"{RECOVERY}{job.namespace}.{job.name}/{incident}-{_slug(mode)}/{job.id[:8]}"


def is_recovery_of(job: Job, workflow_id: str) -> bool:
    """Returns whether a workflow id is that of a recovery of this job. A job of the same name has other ids."""
    return any(workflow_id == recovery_workflow(job, incident_of(workflow_id), mode) for mode in Mode)


def incident_of(recovery: str) -> int:
    """Returns the number of a recovery's incident; 0: the text is not the id of a recovery."""
    found = re.search(r"/([0-9]{1,9})-[^/]*/[^/]*$", recovery)
    return int(found[1]) if found else 0


def runs_mode(recovery: str, mode: Mode) -> bool:
    """Returns whether the id of a recovery says that it runs this mode."""
    return recovery.rpartition("/")[0].endswith(f"/{incident_of(recovery)}-{_slug(mode)}")


def _slug(mode: Mode) -> str:
    return mode.replace(" ", "-")


def failover_workflow(job: Job, links: Sequence[NodeLinks]) -> str:
    """Returns the id of a maintenance, which contains the links that are moved: the same links are not failed over twice."""
    first = links[0]
    more = sha256("|".join(f"{one.node}/{device}" for one in links for device in sorted(one.devices)).encode()).hexdigest()[:8]
    named = "+".join(first.devices)
    short = f"{first.node}.{named}" if len(links) == 1 and len(named) <= LONGEST_DEVICES else f"{first.node}.and-more.{more}"
    return f"{LINK_FAILOVER}{job.namespace}.{job.name}/{short}/{job.id[:8]}"


def dry_run_failover_workflow(job: Job, number: str) -> str:
    """Returns the id of a workflow that only looks up devices for a maintenance."""
    return f"{LINK_FAILOVER}{job.namespace}.{job.name}/dry-run/{number}/{job.id[:8]}"


def is_dry_run(maintenance: str) -> bool:
    return maintenance.startswith(LINK_FAILOVER) and maintenance.split("/")[-3] == "dry-run"


def upgrade_workflow(switch: str) -> str:
    """Returns the id of the upgrade of a switch: there is one at a time."""
    return f"{SWITCH_UPGRADE}{switch}"


def dry_run_workflow(switch: str, number: str) -> str:
    """Returns the id of a workflow that only forecasts an upgrade."""
    return f"{SWITCH_UPGRADE}{switch}/dry-run/{number}"


def nodes_workflow(number: str) -> str:
    """Returns the id of a person's request about nodes."""
    return f"nodes/{number}"


def node_record_workflow(node: str) -> str:
    """Returns the id of the record of a node's incidents."""
    return f"node/{node}"


def request_workflow(job_id: str, request: str) -> str:
    """Returns an id for a mode that a client starts by itself; any other id works as well."""
    return f"request/{job_id}/{request}"


def gateway_queue(instance: str) -> str:
    """Returns the task queue of the gateway that holds a job's stream; it stays the same when the gateway restarts."""
    return f"gateway/{instance}"


class Workflows:
    TRAINING_JOB = "TrainingJob"
    HOT_SWITCH = "HotSwitch"
    ONLINE_RETRY = "OnlineRetry"
    IN_PLACE = "InPlaceRecovery"
    PROCESS_RESCHEDULING = "ProcessRescheduling"
    ELASTIC_TRAINING = "ElasticTraining"
    DYING_GASP = "DyingGasp"
    POD_RESCHEDULING = "PodRescheduling"
    JOB_RESCHEDULING = "JobRescheduling"
    LINK_SWITCH = "LinkSwitch"
    STRESS_TEST = "StressTest"
    SCALING = "Scaling"
    LINK_FAILOVER = "LinkFailover"
    SWITCH_UPGRADE = "SwitchUpgrade"
    NODES = "Nodes"
    NODE_RECORD = "NodeRecord"
    SPARES = "Spares"


class Updates:
    """Updates of `TrainingJob`; `REPORT` is also an update of every mode."""

    REGISTER = "register"
    SIGHTING = "sighting"
    END = "end"
    ATTACH = "attach"
    DETACH = "detach"
    PROGRESS = "progress"
    TIME = "time"
    TRACE = "trace"
    REPORT = "report"
    REPORT_FAULTS = "report_faults"
    RECOVER = "recover"
    WITHDRAW = "withdraw"
    LIFT = "lift"
    ANSWER = "answer"
    """Update with a person's decision about the question whether a mode may run."""
    ABORT = "abort"
    RETRY = "retry"


class FailoverUpdates:
    """Updates of `LinkFailover`."""

    BEGUN = "begun"
    """Completed when the links are being moved, or rejected with the reason why they are not."""
    SWITCH_BACK = "switch_back"
    SETTLED = "settled"
    """Completed when nothing is being moved."""


class PlanUpdates:
    """Updates of `SwitchUpgrade`."""

    CHECKED = "checked"
    """Completed with what the upgrade does or would do; rejected with all reasons why it is not begun."""
    CONTROL = "control"
    """Controls the upgrade. Also a signal, for callers that do not wait."""


class SpareUpdates:
    """Updates of `Spares`."""

    ASK = "ask"
    """Answered with whether the pods of a recovery may be created, or another job gets the spare node."""


class Signals:
    """Signals, which are sent to the running mode unless another receiver is named."""

    ATTACHED = "attached"
    DETACHED = "detached"
    PROGRESSED = "progressed"
    FAULTS = "faults"
    """Signal with all current faults. Faults that are missing from it are over."""
    MANAGER_LOST = "manager_lost"
    """Signal that the cluster shows another process as the job's manager, which knows no rank."""

    VERDICT = "verdict"
    """Signal from a cancelled mode to `TrainingJob`. A cancelled workflow has no result."""

    ANNOUNCED = "announced"
    """Signal from a mode to `TrainingJob`: faults are announced to the training side."""

    UPGRADED = "upgraded"
    """Signal to long-running workflows (`TrainingJob`, `LinkFailover`, `SwitchUpgrade`): another version of the control worker is
    current."""

    SHOW_AGAIN = "show_again"
    """Signal to long-running workflows: the server may have lost some of their search attributes."""

    LINKS_RESET = "links_reset"
    """Signal from `TrainingJob` to `LinkFailover`: devices have other pods, which began on their first links."""
    SWITCHBACK = "switchback"
    """Signal to `LinkFailover` from any sender: the maintenance is over."""
    INCIDENT = "incident"
    """Signal to `NodeRecord`: the node has caused an incident."""
    CLAIM = "claim"
    """Signal to `Spares`: a recovery has begun that needs spare nodes."""
    RELEASE = "release"
    """Signal to `Spares`: the job with this id needs no spare node any more."""
    CONTROL = "control"
    """Signal to `SwitchUpgrade` from any sender."""
    RETURNED = "returned"
    """Signal to `SwitchUpgrade` from a maintenance that it has begun: devices use their first links again."""


class Queries:
    """Queries of `TrainingJob`. `STATUS` is also a query of `LinkFailover`, `SwitchUpgrade`, `NodeRecord` and
    `Spares`."""

    STATUS = "status"
    CONTACT = "contact"


class ErrorTypes:
    """Values of `ApplicationError.type` that callers check."""

    JOB_UNKNOWN = "job.unknown"
    JOB_BUSY = "job.busy"
    JOB_ENDED = "job.ended"
    NOT_INITIALIZED = "job.not_initialized"
    NOT_REGISTERED = "job.not_registered"
    RECOVERY_OFF = "job.recovery_off"
    REPORT_UNEXPECTED = "report.unexpected"
    BETWEEN_MODES = "report.between_modes"
    REPORT_ELSEWHERE = "report.elsewhere"
    """Another workflow waits for the report; the message is its id."""
    ATTACHMENT_MISSING = "attachment.missing"
    """The stream that reports a fault is unknown: send its attachment first, then the fault again."""
    ATTACHMENT_KNOWN = "attachment.known"
    """The update would change nothing, and is not stored."""
    ATTACHMENT_OVER = "attachment.over"
    GIVEN_UP = "recovery.given_up"
    """A recovery gave up and its workflow failed; the verdict is in the details."""
    WORKFLOW_LOST = "AcceptedUpdateCompletedWorkflow"
    """Error of the server: a workflow ended, or was terminated, before it had completed an update."""
    REQUEST_INVALID = "request.invalid"
    REQUEST_REFUSED = "request.refused"
    LINKS_NOT_MOVED = "links.not_moved"
    """Type of the error that links were to be moved and were not."""
