"""Knowledge of a mode when it begins: the state of training, the faults, and the orders that were sent."""

from datetime import datetime
from typing import Self, TypedDict, Unpack

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.dialogue import FaultRank, FaultRanks, Heard, Report
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.mode import Mode, Outcome
from rekindle.model.ranks import Ranks


class PodRef(Value):
    """Pod, identified by its UID. A replacement with the same name has another UID."""

    name: str
    uid: str
    node: str = ""
    rank: int | None = None
    """Pod rank. None for the manager's pod."""


class Phase(Value):
    """Phase of a recovery, for the post-mortem."""

    name: str
    seconds: float
    note: Note = ""
    after: float | None = None
    """Seconds from the beginning of the mode to that of the phase. None: it is an undo, or an earlier version did not set it."""


class Switched(Value):
    """Pod that took over the ranks of another pod."""

    pod_rank: int
    before: PodRef
    after: PodRef

    def left_behind(self, fault: Fault) -> bool:
        """Returns whether a fault is only about the pod that was replaced, or about its node."""
        other_pods = set(fault.pod_ranks) - {self.pod_rank}
        of_the_node = fault.kind is FaultKind.NODE and fault.node == self.before.node and not other_pods
        of_the_rank = fault.kind is FaultKind.POD and not other_pods and bool(fault.pod_ranks)
        return of_the_node or of_the_rank or fault.pod_uids == (self.before.uid,)


class SituationChanges(TypedDict, total=False):
    """Fields of `Situation`, for `with_`. A test compares the two."""

    attempt: str
    faults: tuple[Fault, ...]
    faulty: tuple[FaultRank, ...]
    reported: tuple[FaultRank, ...]
    healed: tuple[int, ...]
    stopped: bool
    announced: tuple[FaultRank, ...]
    leaving: tuple[int, ...]
    confirmed: bool
    offered: bool
    offers: tuple[str, ...]
    presumed: bool
    ordered: tuple[str, ...]
    answer_by: datetime | None
    told_on: str
    tried: tuple[Mode, ...]
    unread: tuple[Report, ...]
    heard: tuple[Heard, ...]


class Situation(Value):
    """Knowledge and progress of the opening of an incident. Passed from mode to mode."""

    attempt: str = ""
    """Uuid of the open attempt. Empty: none is open."""

    faults: tuple[Fault, ...] = ()
    faulty: FaultRanks = ()
    """Ranks that are faulty now, by these faults and by reports of the training side."""

    reported: FaultRanks = ()
    """Ranks that the training side reported as faulty by itself. Ranks that it only repeats after an announcement are not
    included."""

    healed: Ranks = ()
    """Ranks that were announced as faulty and whose pods have no fault any more."""

    stopped: bool = False
    """True if training has stopped: the training side reported it, or its report was lost in an outage."""

    announced: FaultRanks = ()
    """Ranks that `globalFault` announced to the training side. They are announced once in an attempt."""

    leaving: Ranks = ()
    """Pod ranks that an exit order of this incident has named. Named again, the order would end the pod that replaced the old
    one."""

    confirmed: bool = False
    """True if the platform that decides about the job was asked to confirm the faults. It is asked once in an incident."""

    offered: bool = False
    """True if the training side has reported its offers, or its report was lost in an outage."""

    offers: tuple[str, ...] = ()
    """Strategies that the training side can execute now. `exit` is not included: it is always possible."""

    presumed: bool = False
    """True if the offers were lost in an outage, and `offers` contains what such a training side always offers."""

    ordered: tuple[str, ...] = ()
    """Strategies that were ordered in this incident."""

    answer_by: datetime | None = None
    """Time until which the training side waits for the next order. None: it waits without limit."""

    told_on: str = ""
    """Session of the subscription on which all orders of the attempt were written."""

    tried: tuple[Mode, ...] = ()
    unread: tuple[Report, ...] = ()
    heard: tuple[Heard, ...] = ()
    """The last reports that were processed."""

    def with_(self, **changes: Unpack[SituationChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))


class Handled(Value):
    """Occurrence of a fault. A fault that comes back or grows is another occurrence."""

    source: str
    id: str
    accepted_at: datetime | None

    @classmethod
    def of(cls, fault: Fault) -> Self:
        return cls(source=fault.source, id=fault.id, accepted_at=fault.accepted_at)


class Own(Value):
    """Verdict of the mode that was requested, as part of the verdict of the mode that followed."""

    outcome: Outcome
    reason: Text
