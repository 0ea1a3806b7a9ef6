"""Spare nodes that several jobs may need at once: the claims of recoveries, and the answer to each."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.mode import Mode

MOST_AVOIDED = 20
MOST_AVOIDED_BYTES = 2 * 1024
"""Maximum number, and length, of the nodes that a claim names as not usable. Most of them are not free anyway."""

MOST_FREE = 200
"""Maximum number of free nodes in a view. With more of them, every claim is granted."""

MOST_CLAIMS = 50
"""Maximum number of claims that are kept and compared. Claims beyond them are granted."""

MOST_PLACED = 500
"""Maximum number of jobs with backup pods in a view."""


class SpareWish(Value):
    """Spare nodes that a mode needs for new pods, as its workflow knows them."""

    job: Text
    """Namespace and name of the job, for people."""

    incident: int
    mode: Mode
    priority: int | None = None
    """Priority that the owner of the job has set. None: that of its pods counts."""

    cost: int = 0
    """Number of ranks that start again if the mode gets no spare node."""

    pods: int = 1
    need: int = 0
    """Number of free accelerators that each pod needs on its node. 0: that of the job's present pods counts."""

    demands: Text = ""
    """Digest of what the pods demand of their nodes, with `need`."""

    avoid_nodes: tuple[str, ...] = ()
    holds: bool = True
    """True if the claim counts for other jobs too. A restart is only compared with them."""


class SpareNews(Value):
    """Change of what a job needs."""

    wish: SpareWish | None = None
    """Spare nodes that the job needs from now on. None: it needs none any more."""


class SpareClaim(Value):
    """Claim of one recovery, completed with what the cluster knows of the job's pods."""

    job_id: Text
    job: Text
    incident: int
    mode: Mode
    priority: int = 0
    cost: int = 0
    pods: int = 1
    need: int = 1
    """Number of free accelerators that each pod needs on its node."""

    demands: Text = ""
    """Digest of what the pods demand of their nodes. Only claims with the same demands compete."""

    avoid_nodes: tuple[str, ...] = ()
    holds: bool = True
    """See `SpareWish.holds`."""

    since: datetime | None = None
    """Time of the first message of the incident. None: this is the first."""

    until: datetime | None = None
    """Time at which the claim is over by itself."""

    taken: datetime | None = None
    """Time at which the spare was granted, and the creation of the pods began. None: it was not granted."""

    placed: bool = False
    """True if all pods have nodes, or have had the time to get them. Such a claim is kept for the messages to others."""


class SpareView(Value):
    """Free nodes of the cluster, as read for one question."""

    free: dict[str, int] = {}
    """Number of free accelerators by node. Nodes on which no backup pods are placed are left out."""

    placed: dict[str, int] = {}
    """Number of backup pods that have a node already, by job id."""

    plenty: bool = False
    """True if there are more free nodes than are listed."""


class SpareQuestion(Value):
    """Argument of the update `ask`: may these pods be created now?"""

    claim: SpareClaim
    view: SpareView | None = None
    """Free nodes. None: they were not read yet, which is needed only if there are other claims."""


class SpareAnswer(Value):
    granted: bool = False
    look: bool = False
    """True if the free nodes have to be read, and the question repeated with them."""

    reason: Note = ""
    """Reason why another job gets the spare. Empty: none does."""

    note: Note = ""
    """Recoveries that have asked for spare nodes before, for the case that no further node is free. Empty: none."""


class SpareClaims(Value):
    """State of the workflow `Spares`, and its argument."""

    claims: tuple[SpareClaim, ...] = ()
