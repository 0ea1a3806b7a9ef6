"""Orders of the wire contract, field by field as the replaced system fills them. Built by the modes."""

import json
from collections.abc import Iterable, Mapping

from rekindle.model.dialogue import FaultRank, Order, Strategy
from rekindle.model.fault import FaultType
from rekindle.model.links import RankLinks
from rekindle.model.stress import RankOps
from rekindle.model.trace import Trace

CONTINUE = "continue"
"""Training continues where it was paused. Rekindle's training side also answers this to `migration` if the backup pod died."""

NO_ORDER = "no order came in time"
"""Text in the answer of Rekindle's training side after it has ended the pause of a hot switch by itself."""

ROUTES = 33
"""Timeout of `globalFault` with a network fault, in seconds: 3 s for new routes and 30 s for a step that is retried. Source:
ClusterD."""

EXTRA_PARAMS = {
    Strategy.DOWNGRADE: '{"scale-in-strategy": "DP"}',
    Strategy.UPGRADE: '{"scale-out-strategy": "DP"}',
}
"""Literal texts of the contract. Real clients refuse these strategies without them."""


def attempt(nanoseconds: int, randomness: int) -> str:
    """Returns the uuid of an attempt: upper-case hex of the time in ns, a dash, hex of 16 random bytes. Source: the wire
    contract."""
    return f"{nanoseconds:X}-{randomness:032x}"


def prepare_hot_switch(job_id: str, uuid: str, ranks: Iterable[int]) -> Order:
    """`hot switch`: names all ranks of the sub-healthy pod, as faults of type 1."""
    faults = tuple(FaultRank(rank=rank) for rank in ranks)
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("hot switch",), fault_ranks=faults)


def backup_running(job_id: str, uuid: str) -> Order:
    """`new pod running`: the backup pod runs, and its processes load now. Only for a training side that receives this order."""
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("new pod running",))


def with_standbys(order: Order, standbys: Mapping[str, int]) -> Order:
    """Returns the order with the pod ranks of backup pods that were standbys, by their UIDs. These pods learn their rank from it.
    For Rekindle's training side only."""
    if not standbys:
        return order
    before = json.loads(order.extra_params) if order.extra_params else {}
    return order.model_copy(update={"extra_params": json.dumps({**before, "standbys": standbys})})


def stop_hot_switch(job_id: str, uuid: str) -> Order:
    """`stop switch`: ends a hot switch. Allowed only before the report of the pause, and never after a fault report. Source:
    tried with the real client."""
    return Order(job_id=job_id, uuid=uuid, signal_type="hot-switch", actions=("stop switch",))


def migrate(job_id: str, uuid: str) -> Order:
    """`migration`: rebuilds the communicators with the processes of the backup pod, and continues training."""
    return Order(
        job_id=job_id, uuid=uuid, signal_type="changeStrategy", actions=("change_strategy",), change_strategy="migration"
    )


# ---- operations on a job that trains


def pause_train(job_id: str, uuid: str, timeout: int = 0) -> Order:
    """`pause_train`: all ranks stop after the same step and keep their processes and state.

    Args:
        timeout: seconds after which a paused training side may leave; 0: its default. Source: 900 for a stress test, ClusterD.
    """
    return Order(job_id=job_id, uuid=uuid, signal_type="stopTrain", actions=("pause_train",), timeout=timeout)


def switch_links(job_id: str, uuid: str, links: RankLinks) -> Order:
    """Order to ranks to use these links from now on: a `SwitchRankList` on a separate stream."""
    return Order(job_id=job_id, uuid=uuid, signal_type="switchNic", actions=("switch links",), links=links)


def trace(job_id: str, trace: Trace) -> Order:
    """Order to ranks to measure this: a `DataStatusRes` on a separate stream. It gets no answer."""
    return Order(job_id=job_id, uuid="", signal_type="dataTrace", actions=("trace",), trace=trace)


def stress_test(job_id: str, uuid: str, asked: tuple[RankOps, ...]) -> Order:
    """Order to ranks to run these checks: `StressTestRankParams` on a separate stream."""
    return Order(job_id=job_id, uuid=uuid, signal_type="stressTest", actions=("stress test",), stress=asked)


def hold_agents(job_id: str, uuid: str) -> Order:
    """`pauseStartAgent`: TaskD's agents start no processes while a test runs. Nothing answers it."""
    return Order(job_id=job_id, uuid=uuid, signal_type="pauseStartAgent", actions=("pause_start_agent",))


def release_agents(job_id: str, uuid: str) -> Order:
    """`continueStartAgent`: TaskD's agents may start processes again."""
    return Order(job_id=job_id, uuid=uuid, signal_type="continueStartAgent", actions=("continue_start_agent",))


def continue_train(job_id: str, uuid: str) -> Order:
    """`continue`: training continues where it was paused."""
    return Order(job_id=job_id, uuid=uuid, signal_type="changeStrategy", actions=("change_strategy",), change_strategy=CONTINUE)


# ---- fault recovery


def stop_train(job_id: str, uuid: str, faults: tuple[FaultRank, ...]) -> Order:
    """`stop_train`: stops training, and names the faults that are known so far. Without faults it asks for them, and the answer
    names them."""
    return Order(job_id=job_id, uuid=uuid, signal_type="stopTrain", actions=("stop_train",), fault_ranks=faults)


def retryable_fault(job_id: str, uuid: str, faults: tuple[FaultRank, ...]) -> Order:
    """Order `on_global_rank` for faults that a repeated step may repair. No process ends."""
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
    """Order `on_global_rank` with the faulty ranks and all ranks that leave with them.

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
    """`change_strategy`: orders the training side to execute a strategy for its faults.

    Args:
        pods: pod ranks of the faults. `recover` ends these pods, so that no earlier order of the incident may have named them.
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
    """`recover` in place: the pods stay, and their faulty processes are restarted."""
    order = change_strategy(job_id, uuid, Strategy.RECOVER, faults, pods)
    actions = ("change_strategy", "fault_nodes_restart")
    return order.model_copy(update={"actions": actions, "extra_params": "recover-in-place"})


def further_pods_exit(job_id: str, uuid: str, pods: tuple[int, ...]) -> Order:
    """`fault_nodes_exit`: the pods leave that the training side has chosen in addition to the faulty ones. It waits for this also
    if there are none. Source: the wire contract, and the recorded dialogue."""
    return Order(job_id=job_id, uuid=uuid, signal_type="faultNodesExit", actions=("fault_nodes_exit",), node_rank_ids=pods)
