"""Faults of a job: differences between the cluster and a job that trains undisturbed."""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import SerializerFunctionWrapHandler, model_serializer

from rekindle.model.base import Moment, Value
from rekindle.model.bounds import Note
from rekindle.model.ranks import Ranks
from rekindle.model.standby import Standby

WATCHER = "watcher"
"""Source of faults that are read from the cluster. Each sighting contains all of them."""

TRAINING_SIDE = "training-side"
"""Source of faults that the training side reports about processes. They merge into one fault as long as it lasts."""

CORDONED = "cordoned"
"""Value of `Decided.saw` for a node that is cordoned: the scheduler puts no new pods on it."""

HOLDER_LENGTH = 8
"""Number of characters of a pod's UID in `Sighting.holders`."""

UNKNOWN_HOLDER = "?"
"""Holder of a pod rank that two pods claim."""

HOLDERS = "holders"
"""Id of the fault for all pod ranks that have lost the pod that held them."""

EXPECTED_HOLDER = "*"
"""Holder of a pod rank whose pod was just created by Rekindle. The first pod that is seen becomes its holder; a missing one is no
fault."""


class FaultKind(StrEnum):
    SUB_HEALTH = "sub_health"
    """A node or device is slow or degraded and still works."""
    NODE = "node"
    """A node is lost or not ready."""
    POD = "pod"
    """A pod failed, or a pod rank lost the pod that held it."""
    PROCESS = "process"
    """The training side reported faulty ranks."""


class FaultType(StrEnum):
    """Type of a fault; `faultType` on the wire."""

    MEMORY = "0"
    OTHER = "1"
    NETWORK = "2"


class FaultyRanks(Value):
    """Ranks whose fault is of one type, on one device, with one code."""

    ranks: Ranks
    type: FaultType = FaultType.OTHER
    device: str = ""
    code: str = ""


class Decided(Value):
    """Rule that turned a fact of the cluster into a fault."""

    rule: str
    saw: str
    """The fact in a few words, such as `condition GpuXid=True`."""

    since: Moment | None = None
    """Time since which the fact holds, by the cluster's clock. None: unknown."""

    settle: float = 0.0
    """Seconds that the fact must hold before the fault counts."""

    clear: float = 0.0
    """Seconds that the fact must be gone before the fault is over."""

    maintenance: bool = False
    """True if nothing is wrong with the node, but pods have to leave it."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Serializes the fields that are set. One payload may contain hundreds of these values."""
        return {name: value for name, value in handler(self).items() if value}


class Fault(Value):
    """Difference between the world and what should be, from the moment it is seen until it is gone."""

    id: str
    """Id of the fault, unique among those of its `source` as long as it lasts: `{node uid}/{rule}/{devices}`,
    `failed/{generation}`."""

    kind: FaultKind
    pod_ranks: Ranks = ()
    ranks: Ranks = ()
    details: tuple[FaultyRanks, ...] = ()
    """Type, device and code of the fault by rank, if the training side reported them."""

    node: str = ""
    pod: str = ""
    """Name of the pod that the fault is about; the first of several."""

    pod_uids: tuple[str, ...] = ()
    """UIDs of the first ten pods that the fault is about."""

    generation: str = ""
    """Restart of the whole job that created these pods. Empty: unknown, or the fault is not about pods."""

    backup: bool = False
    """True if the pods are backup pods that have not taken over. The running hot switch handles them; this is no real fault."""

    code: str = ""
    message: Note = ""
    seen_at: Moment | None = None
    """Time at which the source saw the fault, by the clock of the source. No decision depends on it."""

    accepted_at: Moment | None = None
    """Time at which the job's workflow accepted the fault, by the workflow's clock. None: not accepted yet."""

    decided: Decided | None = None
    """Rule that made this a fault. None: it is a fault without any rule."""

    session: str = ""
    """Subscription of the training side at the time of its report."""

    source: str
    """Source of the fault: `watcher`, `training-side`, `operator`, ..."""

    @property
    def is_maintenance(self) -> bool:
        """True if nothing is wrong with the node of the fault, but pods have to leave it."""
        return self.decided is not None and self.decided.maintenance

    @property
    def is_cordon(self) -> bool:
        """True if the node is cordoned. The scheduler puts no pods on it until it is uncordoned."""
        return self.decided is not None and self.decided.saw == CORDONED

    def is_part_of(self, other: "Fault") -> bool:
        """Returns whether this is the other fault seen again, with no more ranks or pod ranks. Its texts may differ."""
        if (self.source, self.id) != (other.source, other.id):
            return False
        return set(self.pod_ranks) <= set(other.pod_ranks) and set(self.ranks) <= set(other.ranks)


def not_among(faults: Iterable[Fault], known: Iterable[Fault]) -> list[Fault]:
    """Returns the faults that are not part of a known one."""
    before: dict[tuple[str, str], list[Fault]] = {}
    for one in known:
        before.setdefault((one.source, one.id), []).append(one)
    return [fault for fault in faults if not any(map(fault.is_part_of, before.get((fault.source, fault.id), ())))]


class FaultReport(Value):
    """Update `report_faults`: new faults from a source that does not see the whole job, such as the training side or a person."""

    faults: tuple[Fault, ...] = ()
    cleared: tuple[str, ...] = ()
    """Ids of faults of this source that are over."""

    takes_order: bool = False
    """True if the sender holds the stream of its faults, and writes the order that the receipt contains."""


class FaultsNow(Value):
    """Signal `faults` to the running mode: all present faults. A fault that is missing has healed."""

    faults: tuple[Fault, ...] = ()


class ManagerGone(Value):
    """Signal `manager_lost` to the running mode: the training side's manager was lost."""

    how: str
    """Description of the process that is the manager now."""


class Sighting(Value):
    """State of a job's pods and their nodes at one moment, as the watcher and the activity `survey` see it.

    The sighting of a job with 5,000 pods fits into 256 KiB: a holder takes 11 bytes, and the authors of the lists limit them.
    """

    holders: tuple[str, ...] = ()
    """First eight characters of the UID of the live pod that holds each pod rank, by pod rank. Backup pods do not count. Empty:
    no pod holds it. `UNKNOWN_HOLDER`: two pods claim it."""

    generation: str = ""
    """Restart of the whole job that created the pods with ranks."""

    manager: str = ""
    """Process of the training side's manager, if it has its own pod: the pod's UID and the start time of the process."""

    faults: tuple[Fault, ...] = ()
    """Visible faults: failed pods, and lost or sub-healthy nodes with live pods of the job."""

    problems: tuple[str, ...] = ()
    """Reasons why the pods of the job cannot be told apart. No recovery begins while there are any."""

    standbys: tuple[Standby, ...] = ()
    """Standby pods, by name. A problem of one of them is no fault of the job."""

    unbelieved: tuple[str, ...] = ()
    """Rules that call nodes of the job unhealthy, and too many other nodes. Faults by these rules that are not judged yet end at
    once, without their `clear` time."""

    storm: Note = ""
    """Reason why modes that move pods are held. Empty: there is no storm, or nothing is known to be wrong with the job."""
