"""Orders of the wire contract, field by field as the replaced system fills them. Built by the modes."""

from collections.abc import Iterable
from datetime import timedelta

from rekindle.model.recovery import FaultRank, Order

MINDIO_PACE = timedelta(seconds=1)
"""Between two orders to a MindIO client, the first of which has no answer: its manager takes one order in 100 ms or more, and
keeps the newest only. Source: tried with the real client, on a busy machine."""

CONTINUE = "continue"
"""Our training side, in its answer to `migration`: it goes on where it was, since the backup died."""


def attempt(nanoseconds: int, randomness: int) -> str:
    """The uuid of one attempt: upper-case hex of the time in ns, a dash, hex of 16 random bytes. Source: the wire contract."""
    return f"{nanoseconds:X}-{randomness:032x}"


def prepare_hot_switch(job_id: str, uuid: str, ranks: Iterable[int]) -> Order:
    """`hot switch`: all ranks of the sub-healthy pod, as faults of type 1."""
    faults = tuple(FaultRank(rank=rank) for rank in ranks)
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("hot switch",), fault_ranks=faults)


def backup_running(job_id: str, uuid: str) -> Order:
    """`new pod running`: the backup pod runs; its processes load now. For our training side only: MindIO needs no such order."""
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("new pod running",))


def stop_hot_switch(job_id: str, uuid: str) -> Order:
    """`stop switch`: only before the report of the pause, and never after a fault report. Source: tried with the real client."""
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("stop switch",))


def migrate(job_id: str, uuid: str) -> Order:
    """`migration`: rebuild the communicators with the backup's processes and go on."""
    return Order(
        job_id=job_id, uuid=uuid, signal_type="changeStrategy", actions=("change_strategy",), change_strategy="migration"
    )
