"""Reports for how long the job trains, from what its ranks say of their stretches. Created by the coordinator.

The stretch of the job begins when its first rank begins, and ends when its last rank ends. Ranks wait for each other in every
step, so that theirs hardly differ.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.rank_process import RankProcess
from rekindle_training.manager.reports import Reports
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import Holding, RankMessage, Stretch, TimeReport

EVERY_SECONDS = 300.0
"""Seconds after which a stretch that goes on is reported again."""


@dataclass
class _Rank:
    step: int = 0
    now: Stretch = field(default_factory=Stretch)
    before: Stretch = field(default_factory=Stretch)
    holding: Holding | None = None


class Times:
    def __init__(self, membership: Membership, reports: Reports) -> None:
        self._membership, self._reports = membership, reports
        membership.on_heard = self._hear
        self._ranks: dict[str, _Rank] = {}
        """Stretches by process name."""
        self._fresh: set[str] = set()
        """Names of processes that have begun a stretch since the last report. Messages of a thousand ranks are only counted."""
        self._told = Stretch()

    async def run(self) -> None:
        """Reports each stretch when all ranks have begun it, and from time to time. Returns after the last one."""
        await self._membership.until(lambda: self._has_begun() or self._membership.finished)
        while not self._membership.finished:
            if ranks := self._of_members():  # in a long start none of them has completed a step
                self._report(ranks)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.5, 1.0) * EVERY_SECONDS):  # jobs are not to report in one moment
                    await self._membership.until(lambda: self._has_begun() or self._membership.finished)
        if ranks := self._of_members():
            self._report(ranks, final=True)

    def _hear(self, process: RankProcess, message: RankMessage) -> None:
        rank = self._ranks.setdefault(process.identity, _Rank())
        match message.WhichOneof("kind"):
            case "stepped":
                rank.step, rank.now, rank.before = message.stepped.step, message.stepped.now, message.stepped.before
                rank.holding = message.stepped.holding if message.stepped.HasField("holding") else None
                if rank.now.began > self._told.ended:
                    self._fresh.add(process.identity)
            case "heartbeat" if message.heartbeat.now.began == rank.now.began:  # the first step of another one tells of both
                rank.step, rank.now = message.heartbeat.step, message.heartbeat.now
            case "goodbye":
                rank.step, rank.now = message.goodbye.step, message.goodbye.now

    def _has_begun(self) -> bool:
        """Returns whether all ranks have begun a stretch that was not reported yet."""
        if len(self._fresh) < len(self._membership.present):
            return False
        return self._fresh.issuperset(member.identity for member in self._membership.members.values())

    def _of_members(self) -> list[_Rank]:
        """Returns the members that have completed a step, and forgets all other processes."""
        names = {member.identity for member in self._membership.members.values()}
        self._ranks = {name: rank for name, rank in self._ranks.items() if name in names}
        return [rank for rank in self._ranks.values() if rank.now.began]

    def _report(self, ranks: list[_Rank], *, final: bool = False) -> None:
        now, before = _whole([rank.now for rank in ranks]), _whole([rank.before for rank in ranks])
        holdings = [rank.holding for rank in ranks if rank.holding]
        report = TimeReport(
            protocol=PROTOCOL,
            world_size=self._membership.world_size,
            step=max(rank.step for rank in ranks),
            now=now,
            before=before if before.began else None,
            final=final,
            holding=max(holdings, key=lambda one: one.state_bytes, default=None),
        )
        self._reports.time(report)
        self._told = now
        self._fresh = {name for name, rank in self._ranks.items() if rank.now.began > now.ended}


def _whole(stretches: list[Stretch]) -> Stretch:
    """Returns the stretch of the job: that of the rank which came furthest, from the beginning of the first one.

    In the first step this one waits for the last rank. If it is a step that is done again, so is that time.
    """
    last = max(stretches, key=lambda one: one.ended)
    began = min(one.began for one in stretches if one.ended >= last.began)
    return Stretch(
        began=began,
        ended=last.ended,
        steps=last.steps,
        checkpoint_seconds=last.checkpoint_seconds,
        again_seconds=last.again_seconds + (last.began - began if last.again_seconds else 0.0),
        missing_share=last.missing_share,
    )
