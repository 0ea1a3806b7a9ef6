"""A procedure of the manager that is cancelled ends, whatever happens in the same moment."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rekindle_training.manager import procedures, repair
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.recovery import Recovery
from rekindle_wire.training_pb2 import Hello

TURNS = 6
"""Turns of the event loop in which a cancelled recovery ends."""


def training() -> Membership:
    """Two ranks."""
    membership = Membership(2)
    for rank in range(2):
        membership.enroll(Hello(rank=rank, role="worker", process=f"process-{rank}"), 1)
    return membership


@pytest.mark.parametrize("procedure", [repair.stand, procedures.pause], ids=["repair", "hot switch"])
async def test_who_is_cancelled_when_a_rank_is_lost_does_not_ask_on(procedure: Callable[[Membership], Awaitable[Any]]) -> None:
    """The procedure ends. It would otherwise wait in vain for each rank that is left."""
    membership = training()
    asking = asyncio.ensure_future(procedure(membership))
    await asyncio.sleep(0)
    membership.members[0].lose()
    asking.cancel()
    await asyncio.wait({asking}, timeout=60)
    assert asking.cancelled()


@pytest.mark.parametrize("turns", range(TURNS))
async def test_nothing_is_left_of_a_recovery_that_is_cancelled_again_while_it_ends(turns: int) -> None:
    """No task of the recovery is left, neither its message to launchers that it is undecided, nor its current work."""
    means: Any = SimpleNamespace(membership=training(), pods=Pods(), reports=None, order_timeout=60)
    others = asyncio.all_tasks()
    recovering = asyncio.ensure_future(Recovery(means, asyncio.Event().wait, None).run())
    await asyncio.sleep(0)
    recovering.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    recovering.cancel()
    await asyncio.wait({recovering})
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == others
