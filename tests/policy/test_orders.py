"""Orders of a fault recovery, field by field as the replaced system sent them in recorded dialogues."""

import pytest

from rekindle.model.dialogue import FaultRank, Order, Strategy
from rekindle.model.fault import FaultType
from rekindle.policy.dialogue import orders

JOB, UUID = "job-uid-0007", "18EA07A25F979280-5051"
NORMAL = (FaultRank(rank=1),)
BOTH = (FaultRank(rank=1), FaultRank(rank=2))
MEMORY = (FaultRank(rank=1, type=FaultType.MEMORY),)
NETWORK = (FaultRank(rank=1, type=FaultType.NETWORK),)
STRATEGY = {"signal_type": "changeStrategy", "actions": ("change_strategy",)}
EXIT = ("on_global_rank", "fault_nodes_exit")

RECORDED = {
    "stop": (
        orders.stop_train(JOB, UUID, NORMAL),
        {"signal_type": "stopTrain", "actions": ("stop_train",), "fault_ranks": NORMAL},
    ),
    "stop as a question": (orders.stop_train(JOB, UUID, ()), {"signal_type": "stopTrain", "actions": ("stop_train",)}),
    "memory fault": (
        orders.retryable_fault(JOB, UUID, MEMORY),
        {"signal_type": "globalFault", "actions": ("on_global_rank",), "fault_ranks": MEMORY},
    ),
    "network fault": (
        orders.retryable_fault(JOB, UUID, NETWORK),
        {"signal_type": "globalFault", "actions": ("on_global_rank",), "fault_ranks": NETWORK, "timeout": 33},
    ),
    "normal fault": (
        orders.normal_fault(JOB, UUID, NORMAL, (1,)),
        {"signal_type": "globalFault", "actions": EXIT, "fault_ranks": NORMAL, "node_rank_ids": (1,)},
    ),
    "retry": (
        orders.change_strategy(JOB, UUID, Strategy.RETRY, MEMORY, (1,)),
        {**STRATEGY, "fault_ranks": MEMORY, "change_strategy": "retry", "node_rank_ids": (1,)},
    ),
    "recover": (
        orders.change_strategy(JOB, UUID, Strategy.RECOVER, BOTH, (1, 2)),
        {**STRATEGY, "fault_ranks": BOTH, "change_strategy": "recover", "node_rank_ids": (1, 2)},
    ),
    "recover with a standby": (
        orders.with_standbys(orders.change_strategy(JOB, UUID, Strategy.RECOVER, BOTH, (1, 2)), {"uid-of-a-pod": 2}),
        {
            **STRATEGY,
            "fault_ranks": BOTH,
            "change_strategy": "recover",
            "node_rank_ids": (1, 2),
            "extra_params": '{"standbys": {"uid-of-a-pod": 2}}',
        },
    ),
    "new pod running, and no standby": (
        orders.with_standbys(orders.backup_running(JOB, UUID), {}),
        {"signal_type": "hot-switch", "actions": ("new pod running",)},
    ),
    "dump": (
        orders.change_strategy(JOB, UUID, Strategy.DUMP, NORMAL, (1,)),
        {**STRATEGY, "fault_ranks": NORMAL, "change_strategy": "dump", "node_rank_ids": (1,)},
    ),
    "exit": (
        orders.change_strategy(JOB, UUID, Strategy.EXIT, NORMAL, (1,)),
        {**STRATEGY, "fault_ranks": NORMAL, "change_strategy": "exit", "node_rank_ids": (1,)},
    ),
    "downgrade": (
        orders.change_strategy(JOB, UUID, Strategy.DOWNGRADE, NORMAL, (1,)),
        {
            **STRATEGY,
            "fault_ranks": NORMAL,
            "change_strategy": "downgrade",
            "node_rank_ids": (1,),
            "extra_params": '{"scale-in-strategy": "DP"}',
        },
    ),
    "upgrade": (
        orders.change_strategy(JOB, UUID, Strategy.UPGRADE, NORMAL, (1,)),
        {
            **STRATEGY,
            "fault_ranks": NORMAL,
            "change_strategy": "upgrade",
            "node_rank_ids": (1,),
            "extra_params": '{"scale-out-strategy": "DP"}',
        },
    ),
    "recover in place": (
        orders.recover_in_place(JOB, UUID, NORMAL, (1,)),
        {
            "signal_type": "changeStrategy",
            "actions": ("change_strategy", "fault_nodes_restart"),
            "fault_ranks": NORMAL,
            "change_strategy": "recover",
            "node_rank_ids": (1,),
            "extra_params": "recover-in-place",
        },
    ),
}


@pytest.mark.parametrize(("order", "fields"), RECORDED.values(), ids=RECORDED)
def test_an_order_has_the_fields_of_the_recorded_one(order: Order, fields: dict[str, object]) -> None:
    """Everything that is not named here is empty."""
    assert order == Order.model_validate({"job_id": JOB, "uuid": UUID, **fields})
