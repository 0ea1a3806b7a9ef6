"""Arguments and results of activities that wait for pods that a job's controller recreates."""

from datetime import timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Text
from rekindle.model.ranks import Ranks
from rekindle.model.situation import Switched


class Held(Value):
    """Pod rank whose pod is to be followed by another pod, which the job's controller creates."""

    pod_rank: int
    holder: str
    """First characters of the UID of the pod that is to end, as in `Sighting.holders`. Empty: none held the rank, so that no pod
    that lives has to end."""

    told: bool
    """True if the training side ordered the pod to exit: it then ends by itself."""

    replica: int | None = None
    """Number of the replica of which the pod is a part, and that comes as a whole. None: the pod comes by itself."""

    def is_held_by(self, uid: str) -> bool:
        """Returns whether the pod with this UID is the one that is to end."""
        return bool(self.holder) and uid.startswith(self.holder)


class RecreationRequest(Value):
    job_id: str
    held: tuple[Held, ...]
    lost_nodes: tuple[str, ...]
    within: timedelta
    enough: int = 0
    """Number of these pods that are waited for, whichever they are. 0: all of them."""


class Recreation(Value):
    """Pods that the job's controller has recreated and the scheduler has assigned to nodes."""

    moved: tuple[Switched, ...] = ()
    """The first of these pods."""

    came: Ranks = ()
    """Pod ranks of all of them, without those of replicas that are not whole."""

    missing: Text = ""
    """Description of the pods that are still missing. Empty: all pods are there."""
