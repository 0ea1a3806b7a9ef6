"""Arguments and results of activities on a job's object, its stream and its state in the cluster."""

from rekindle.model.base import Value
from rekindle.model.bounds import Text
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.fault import Sighting
from rekindle.model.node_record import Blame
from rekindle.model.spares import SpareNews
from rekindle.model.state import Remembered


class JobRequest(Value):
    job_id: str


class JobLook(Value):
    phase: JobPhase | None = None
    """Phase of the job. None: the job no longer exists."""


class PolicyRequest(Value):
    job_id: str
    strategy: str
    reason: Text
    """Reason why the policy differs from what the job's owner wrote. Empty: it does not differ."""


class EventRequest(Value):
    job_id: str
    event: ClusterEvent


class EndSession(Value):
    job_id: str
    session: str
    reason: str


class RememberRequest(Value):
    job_id: str
    memory: Remembered
    recovering: Text = ""
    """Mode that is running, for display. Empty: no mode is running."""

    last_verdict: Text = ""
    given_up: Text = ""
    """Reason why nothing more is done for the job. Empty: it was not given up."""

    event: ClusterEvent | None = None
    """Event about the job, which is created after the rest has been written."""

    blame: Blame | None = None
    """Incident that has just ended, for the records of the nodes that have caused it. None: no node has."""

    incident: int = 0
    """Number of the incident that has just ended, whose trace is exported where traces are on. 0: none has."""

    spare: SpareNews | None = None
    """Change of the spare nodes that the job needs. None: there is none."""


class SurveyRequest(Value):
    job_id: str
    nodes: tuple[str, ...] = ()
    """Names of the nodes to look at. Only the first hundred of a longer list are used."""


class Survey(Value):
    """State of a job in the cluster now, for a caller that asks."""

    exists: bool
    phase: JobPhase = JobPhase.PENDING
    ended: str = ""
    """Reason why the job has ended. Empty: it has not."""

    sighting: Sighting = Sighting()
    """Sighting as the watcher would report it, but without other nodes than `nodes`."""

    nodes: tuple[str, ...] = ()
    """Names of the nodes that were looked at, including those that no longer exist."""
