"""What is wrong with a job: differences between the world and a job that trains undisturbed."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from pydantic import SerializerFunctionWrapHandler, model_serializer

from rekindle.model.base import Value
from rekindle.model.bounds import Note
from rekindle.model.ranks import Ranks
from rekindle.model.standby import Standby

WATCHER = "watcher"
"""Source of faults that each sighting tells anew."""

TRAINING_SIDE = "training-side"
"""Source of reports about processes, which merge into one fault for as long as it stands."""

CORDONED = "cordoned"
"""What a rule saw of a node that the scheduler puts no new pod on, because somebody says so."""

HOLDER_LENGTH = 8
"""Characters of a pod's UID that stand for it in `Sighting.holders`."""

UNKNOWN_HOLDER = "?"
"""Holder of a pod rank that two pods claim."""

HOLDERS = "holders"
"""Id of the fault of pod ranks that lost the pod that held them."""

EXPECTED_HOLDER = "*"
"""Holder of a pod rank whose pod was just made by us: whoever is seen first, and nobody is a fault."""


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
    """`faultType` on the wire."""

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
    """Which rule made a fault of something that the cluster shows."""

    rule: str
    saw: str
    """The fact, in a few words: `condition GpuXid=True`."""

    since: datetime | None = None
    """By the cluster's clock, where it says so."""

    settle: float = 0.0
    """Seconds that it has to last until it counts."""

    clear: float = 0.0
    """Seconds that it has to be gone until it is over."""

    maintenance: bool = False
    """Nothing is wrong with the node: it is to be left."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """There may be hundreds in one payload."""
        return {name: value for name, value in handler(self).items() if value}


class Fault(Value):
    """One difference, from when it is seen until it is gone."""

    id: str
    """Names the difference as long as it lasts, together with `source`: `{node uid}/{rule}/{devices}`, `failed/{generation}`."""

    kind: FaultKind
    pod_ranks: Ranks = ()
    ranks: Ranks = ()
    details: tuple[FaultyRanks, ...] = ()
    """Type, device and code rank by rank, where the training side told them."""

    node: str = ""
    pod: str = ""
    """Name of a pod that it is about, the first of several."""

    pod_uids: tuple[str, ...] = ()
    """UIDs of the first ten pods that it is about."""

    generation: str = ""
    """Which restart of the whole job created these pods; empty: unknown, or about no pod."""

    backup: bool = False
    """The pods are backup pods that have not taken over: the running hot switch's own affair, not a real fault."""

    code: str = ""
    message: Note = ""
    seen_at: datetime | None = None
    """By the clock of who saw it; decides nothing."""

    accepted_at: datetime | None = None
    """By the workflow's clock, when the job's workflow took it; None: not taken yet."""

    decided: Decided | None = None
    """The rule by which it is one; None: it is one in any case."""

    session: str = ""
    """The training side's subscription at the time of its report."""

    source: str
    """Who saw it: `watcher`, `training-side`, `operator`, ..."""

    @property
    def is_maintenance(self) -> bool:
        """Nothing is wrong with its node, which is to be left."""
        return self.decided is not None and self.decided.maintenance

    @property
    def is_cordon(self) -> bool:
        """Its node takes pods again as soon as somebody says so; until then the scheduler puts none there."""
        return self.decided is not None and self.decided.saw == CORDONED

    def same_as(self, other: "Fault") -> bool:
        """Whether it is the same difference, seen again."""
        return self.untimed() == other.untimed()

    def untimed(self) -> "Fault":
        """The difference itself, whenever it was seen."""
        return self.model_copy(update={"seen_at": None, "accepted_at": None})

    def is_part_of(self, other: "Fault") -> bool:
        """Whether it is this other one, seen again and no bigger. Words about it may have changed."""
        if (self.source, self.id) != (other.source, other.id):
            return False
        return set(self.pod_ranks) <= set(other.pod_ranks) and set(self.ranks) <= set(other.ranks)


def not_among(faults: Iterable[Fault], known: Iterable[Fault]) -> list[Fault]:
    """The faults that are not among those that are known, seen again."""
    before: dict[tuple[str, str], list[Fault]] = {}
    for one in known:
        before.setdefault((one.source, one.id), []).append(one)
    return [fault for fault in faults if not any(map(fault.is_part_of, before.get((fault.source, fault.id), ())))]


class FaultReport(Value):
    """Update `report_faults`: news from who sees no whole job, such as the training side or a person."""

    faults: tuple[Fault, ...] = ()
    cleared: tuple[str, ...] = ()
    """Ids of its faults that are over."""

    takes_order: bool = False
    """Who sends it holds the stream of its faults, and writes the order that the receipt brings."""


class FaultsNow(Value):
    """Signal `faults` to the running mode: all that is broken now. What is not in it any more has healed."""

    faults: tuple[Fault, ...] = ()


class ManagerGone(Value):
    """Signal `manager_lost` to the running mode."""

    how: str
    """In words: which process it is now."""


class Sighting(Value):
    """A job's pods and their nodes at one moment, as the watcher and the activity `survey` see them: all that matters of them.

    A 5,000-pod job fits into 256 KiB: holders cost 11 bytes each, lists are bounded by who makes them.
    """

    holders: tuple[str, ...] = ()
    """By pod rank: the first eight characters of the UID of the pod that holds it (live, no backup); empty: nobody does;
    `UNKNOWN_HOLDER`: two pods claim it."""

    generation: str = ""
    """Of the pods that hold ranks: which restart of the whole job created them."""

    manager: str = ""
    """Which process the training side's manager is, where it has a pod of its own: the pod's UID and when it started."""

    faults: tuple[Fault, ...] = ()
    """What is visibly wrong: failed pods, nodes that are lost or sub-healthy with live pods of the job on them."""

    problems: tuple[str, ...] = ()
    """Why the pods cannot be told apart, in words; no recovery begins while there are any."""

    standbys: tuple[Standby, ...] = ()
    """Pods that stand by, by name. What is wrong with one is no fault of the job."""

    unbelieved: tuple[str, ...] = ()
    """Rules that call nodes of the job sick, and too many others: what stood by them is over, and not just gone for a moment."""
