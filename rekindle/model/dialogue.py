"""Orders to the training side, its reports, and the answers to reports."""

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from rekindle.model.account import Counted
from rekindle.model.base import Value
from rekindle.model.fault import FaultType
from rekindle.model.links import RankLinks
from rekindle.model.ranks import Ranks, read_ranks, written_ranks
from rekindle.model.stress import RankOps, StressResults
from rekindle.model.trace import Trace


class FaultRank(Value):
    rank: int
    type: FaultType = FaultType.OTHER


def _by_type(ranks: tuple[FaultRank, ...]) -> dict[str, str]:
    return {kind: written_ranks(one.rank for one in ranks if one.type is kind) for kind in sorted({one.type for one in ranks})}


def _read_by_type(value: object) -> object:
    if not isinstance(value, dict):
        return value
    found = [FaultRank(rank=rank, type=kind) for kind, ranks in value.items() for rank in read_ranks(ranks)]
    return tuple(sorted(found, key=lambda one: one.rank))


FaultRanks = Annotated[
    tuple[FaultRank, ...],
    BeforeValidator(_read_by_type),
    PlainSerializer(_by_type, return_type=dict[str, str], when_used="json"),
]
"""Ranks with the type of their fault. In JSON a text of ranks for each type, such as `{"1": "0-7"}`, so that 10,000 ranks fit
into a payload."""


class Order(Value):
    """Message to the training side; by default a `ProcessManageSignal`."""

    job_id: str
    uuid: str
    """Id of the attempt. The training side executes the same order with the same uuid only once."""

    signal_type: str
    actions: tuple[str, ...] = ()
    fault_ranks: FaultRanks = ()
    change_strategy: str = ""
    timeout: int = 0
    """Timeout in seconds. 0: the contract gives none."""

    node_rank_ids: tuple[int, ...] = ()
    extra_params: str = ""
    session: str = ""
    """Session of the subscription that gets the order. A newer subscription gets all orders of the attempt again. Empty: any
    subscription."""

    links: RankLinks | None = None
    """Content of a `SwitchRankList` for the stream `SubscribeNotifySwitch`. None: this is another message."""

    stress: tuple[RankOps, ...] = ()
    """Content of `StressTestRankParams` for the stream `SubscribeNotifyExecStressTest`. Empty: this is another message."""

    trace: Trace | None = None
    """Content of a `DataStatusRes` for the stream `SubscribeDataTraceSwitch`. None: this is another message."""

    at_once: bool = False
    """True if the client reads orders as they arrive, as Rekindle's manager does. Other clients may lose the first of two orders
    that arrive together."""

    @property
    def name(self) -> str:
        """Name of the order for people, such as `hot switch` or `migration`."""
        return self.change_strategy or (self.actions[0] if self.actions else self.signal_type)


class ReportKind(StrEnum):
    STOP_COMPLETE = "stop complete"
    STRATEGIES = "strategies"
    STATUS = "status"
    LINKS = "links"
    STRESS = "stress test"


class Report(Value):
    """Message by which the training side answers an order. The contract gives it no id."""

    kind: ReportKind
    code: int = 0
    info: str = ""
    fault_ranks: FaultRanks = ()
    strategies: tuple[str, ...] = ()
    strategy: str = ""
    attempt: str = ""
    """Uuid of the order that a status answers, as Rekindle's training side sends it. Empty: not sent."""

    isolate_ranks: Ranks = ()
    results: StressResults | None = None
    """Results of a stress test. None: this is another report."""


class Strategy(StrEnum):
    """Strategy for faults, which an order to the training side names. In-place recovery is `recover` with an extra parameter."""

    RETRY = "retry"
    RECOVER = "recover"
    DUMP = "dump"
    EXIT = "exit"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"


class Heard(Value):
    """Record of a report that was processed, by which a repetition is recognized."""

    id: str
    """Id of the update with the report. A gateway without an answer repeats the update with the same id, even to
    the next mode."""

    mark: str
    """Digest of the report's content. A client without an answer repeats the report on a new connection."""


class Receipt(Value):
    """Answer of the gateway to a client; `Status` on the wire."""

    code: int = 0
    info: str = ""
    order: Order | None = None
    """First order of the recovery that reported faults start, for the stream of its session. None for all other messages."""

    counted: Counted | None = None
    """Account of the job, as answer to a report for how long it has trained. None for all other messages."""

    recovery: str = ""
    """Workflow id of the recovery that gives the order."""
