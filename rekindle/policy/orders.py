"""Orders of the wire contract, field by field as the replaced system fills them. Built by the modes."""

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta

from rekindle.model.fault import FaultType
from rekindle.model.links import RankLinks
from rekindle.model.recovery import FaultRank, Order, Strategy
from rekindle.model.stress import RankOps
from rekindle.model.trace import Trace

MINDIO_PACE = timedelta(seconds=1)
"""Between two orders to a MindIO client, the first of which has no answer: its manager takes one order in 100 ms or more, and
keeps the newest only. Source: tried with the real client, on a busy machine."""

CONTINUE = "continue"
NO_ORDER = "no order came in time"
"""Words of our own training side where it has ended the pause of a hot switch by itself. Source: its `hot_switch.py`."""
"""Training goes on where it was paused. Our training side says so, too, in its answer to `migration`, where the backup died."""

ROUTES = 33
"""Seconds of `globalFault` with a network fault: 3 s for new routes and 30 s of a step that is tried again. Source: ClusterD."""

EXTRA_PARAMS = {
    Strategy.DOWNGRADE: '{"scale-in-strategy": "DP"}',
    Strategy.UPGRADE: '{"scale-out-strategy": "DP"}',
}
"""Literal texts of the contract; MindIO refuses these strategies without them."""


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


def with_standbys(order: Order, standbys: Mapping[str, int]) -> Order:
    """An order to our training side that brings backup pods, with the pod ranks of those that were standbys, by their UIDs: they
    learn by it whose place they take."""
    return order.model_copy(update={"extra_params": json.dumps({"standbys": standbys})}) if standbys else order


def stop_hot_switch(job_id: str, uuid: str) -> Order:
    """`stop switch`: only before the report of the pause, and never after a fault report. Source: tried with the real client."""
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("stop switch",))


def migrate(job_id: str, uuid: str) -> Order:
    """`migration`: rebuild the communicators with the backup's processes and go on."""
    return Order(
        job_id=job_id, uuid=uuid, signal_type="changeStrategy", actions=("change_strategy",), change_strategy="migration"
    )


# ---- operations on a job that trains


def pause_train(job_id: str, uuid: str, timeout: int = 0) -> Order:
    """`pause_train`: all ranks stand behind one step, with what they have.

    Args:
        timeout: seconds after which who is paused may leave; 0: its own. Source: 900 for a stress test, ClusterD.
    """
    return Order(job_id=job_id, uuid=uuid, signal_type="stopTrain", actions=("pause_train",), timeout=timeout)


def switch_links(job_id: str, uuid: str, links: RankLinks) -> Order:
    """Which ranks use which link from now on: a `SwitchRankList` on a stream of its own."""
    return Order(job_id=job_id, uuid=uuid, signal_type="switchNic", actions=("switch links",), links=links)


def trace(job_id: str, trace: Trace) -> Order:
    """Returns the order for what ranks measure of themselves: a `DataStatusRes` on a stream of its own, which nobody answers."""
    return Order(job_id=job_id, uuid="", signal_type="dataTrace", actions=("trace",), trace=trace)


def stress_test(job_id: str, uuid: str, asked: tuple[RankOps, ...]) -> Order:
    """Which ranks make which checks: `StressTestRankParams` on a stream of its own."""
    return Order(job_id=job_id, uuid=uuid, signal_type="stressTest", actions=("stress test",), stress=asked)


def hold_agents(job_id: str, uuid: str) -> Order:
    """`pauseStartAgent`: TaskD's agents start no processes while a test runs. Nothing answers it."""
    return Order(job_id=job_id, uuid=uuid, signal_type="pauseStartAgent", actions=("pause_start_agent",))


def release_agents(job_id: str, uuid: str) -> Order:
    """`continueStartAgent`: they may again."""
    return Order(job_id=job_id, uuid=uuid, signal_type="continueStartAgent", actions=("continue_start_agent",))


def continue_train(job_id: str, uuid: str) -> Order:
    """`continue`: training goes on where it was paused."""
    return Order(job_id=job_id, uuid=uuid, signal_type="changeStrategy", actions=("change_strategy",), change_strategy=CONTINUE)


# ---- fault recovery


def stop_train(job_id: str, uuid: str, faults: tuple[FaultRank, ...]) -> Order:
    """`stop_train`: training stops, with the faults that are known so far; none is a question, which the answer answers."""
    return Order(job_id=job_id, uuid=uuid, signal_type="stopTrain", actions=("stop_train",), fault_ranks=faults)


def retryable_fault(job_id: str, uuid: str, faults: tuple[FaultRank, ...]) -> Order:
    """`on_global_rank` where every fault may go away when the step is repeated: no process ends."""
    timeout = ROUTES if any(fault.type is FaultType.NETWORK for fault in faults) else 0
    return Order(
        job_id=job_id,
        uuid=uuid,
        signal_type="globalFault",
        actions=("on_global_rank",),
        fault_ranks=faults,
        timeout=timeout,
    )


def normal_fault(job_id: str, uuid: str, faults: tuple[FaultRank, ...], leaving: tuple[int, ...]) -> Order:
    """`on_global_rank` with the faulty ranks and all that leave with them.

    Args:
        leaving: pod ranks whose agents end with their processes.
    """
    return Order(
        job_id=job_id,
        uuid=uuid,
        signal_type="globalFault",
        actions=("on_global_rank", "fault_nodes_exit"),
        fault_ranks=faults,
        node_rank_ids=leaving,
    )


def change_strategy(
    job_id: str, uuid: str, strategy: Strategy, faults: tuple[FaultRank, ...] = (), pods: tuple[int, ...] = ()
) -> Order:
    """What the training side is to do about its faults.

    Args:
        pods: pod ranks of the faults. Those of `recover` end: only pods that no order of this incident has named.
    """
    return Order(
        job_id=job_id,
        uuid=uuid,
        signal_type="changeStrategy",
        actions=("change_strategy",),
        fault_ranks=faults,
        change_strategy=strategy,
        node_rank_ids=pods,
        extra_params=EXTRA_PARAMS.get(strategy, ""),
    )


def recover_in_place(job_id: str, uuid: str, faults: tuple[FaultRank, ...], pods: tuple[int, ...]) -> Order:
    """`recover` in which these pods stay and their faulty processes start again."""
    order = change_strategy(job_id, uuid, Strategy.RECOVER, faults, pods)
    actions = ("change_strategy", "fault_nodes_restart")
    return order.model_copy(update={"actions": actions, "extra_params": "recover-in-place"})


def exit_after_dump(job_id: str, uuid: str, pods: tuple[int, ...]) -> Order:
    """`exit` behind a dump, or where nothing else is left: the agents of these pods end, the others start again."""
    order = change_strategy(job_id, uuid, Strategy.EXIT, pods=pods)
    return order.model_copy(update={"extra_params": "dump_exit"})
