"""Moves the collectives of ranks from one link of their pods to the other, while training stands.

Created for an order of the control plane, and run by `maintenance.py`. Either all named ranks move, or none: if one of them
cannot, the others are moved back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping

from rekindle_training.manager import procedures
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.repair import Repair
from rekindle_training.manager.replacements import CannotRepair, Nobody
from rekindle_wire.recover_pb2 import SwitchRankList
from rekindle_wire.training_pb2 import ManagerMessage, RankMessage, SwitchLink

log = logging.getLogger(__name__)

SWITCH_SECONDS = 60.0
"""Seconds in which a rank has to switch its link, because a script's own function may do it.

Otherwise the answer takes a moment.
"""
END_SECONDS = 10.0
"""Seconds to wait until a process that was killed is known to have ended."""

Links = Mapping[int, bool]
"""Link of each rank: True if it uses the second link of its pod."""


def read(order: SwitchRankList, ranks: int) -> dict[int, bool]:
    """Returns the link of each rank that an order names.

    Args:
        ranks: number of ranks of the job.

    Raises:
        ValueError: the order is invalid; the message names the field.
    """
    if not order.rankID:
        raise ValueError("rankID: no rank is named")
    if len(order.rankID) != len(order.op):
        raise ValueError(f"op: {len(order.op)} directions for {len(order.rankID)} ranks of rankID")
    links: dict[int, bool] = {}
    for text, backup in zip(order.rankID, order.op, strict=True):
        if not (text.isascii() and text.isdigit()) or int(text) >= ranks:
            raise ValueError(f"rankID: {text!r} is not one of 0 to {ranks - 1}")
        if int(text) in links:
            raise ValueError(f"rankID: rank {int(text)} is named twice")
        links[int(text)] = backup
    return links


class LinkSwitch:
    """Link switch of one order."""

    def __init__(self, order: SwitchRankList, means: Means) -> None:
        self.order = order.SerializeToString(deterministic=True)
        self._order, self._means, self._membership = order, means, means.membership
        self._result = False
        self._info = "it is not done yet"
        self.mends = False

    def answer(self, attempt: str) -> None:
        self._means.reports.links_switched(result=self._result, info=self._info, attempt=attempt)

    def break_off(self, reason: str) -> None:
        self._result, self._info = False, reason

    async def run(self) -> None:
        """Runs the link switch. Raises CannotRepair if training can go on on neither link."""
        try:
            links = read(self._order, self._membership.world_size)
        except ValueError as error:
            self.break_off(str(error))
            return
        if missing := sorted(links.keys() - self._membership.members.keys()):
            self.break_off(f"rankID: rank {missing[0]} is missing, training goes on without it")
            return
        self._result, self._info = await self._switch(links)

    async def _switch(self, links: Links) -> tuple[bool, str]:
        before = self._membership.links
        answers = await self._ask(links)
        if problems := _problems(answers):
            moved = {
                rank: before[rank] for rank, answer in answers.items() if _may_have(answer, moves=before[rank] != links[rank])
            }
            back = await self._ask(moved)
            await self._end([self._membership.members[rank] for rank, answer in back.items() if isinstance(answer, TimeoutError)])
            if undone := _problems(back):
                raise CannotRepair(f"{_in_words(problems)}; back on the links of before: {_in_words(undone)}")
            return False, f"{_in_words(problems)}; all ranks are on the links of before"
        if not any(answer.link_switched.rebuild for answer in answers.values() if isinstance(answer, RankMessage)):
            self._membership.put_links(links)
        elif failure := await self._rebuild(before, links):
            return False, await self._undo(failure)
        return True, f"{sum(self._membership.links.values())} of {self._membership.world_size} ranks are on their backup links"

    async def _ask(self, links: Links) -> dict[int, RankMessage | BaseException]:
        """Orders ranks to use these links. Returns the answer of each rank, or the error that came instead."""
        asked = {
            rank: self._membership.members[rank].ask(
                ManagerMessage(generation=self._membership.generation, switch_link=SwitchLink(backup=backup)), "link_switched"
            )
            for rank, backup in sorted(links.items())
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=SWITCH_SECONDS)
        return {rank: _outcome(answer) for rank, answer in asked.items()}

    async def _rebuild(self, before: Links, links: Links) -> str:
        """Rebuilds the process groups on these links. Returns why this failed. Empty: all ranks stand in a new generation on
        them.

        After a failure the former links are recorded again.
        """
        membership, limit = self._membership, self._means.rebuild_timeout
        step = min(member.step for member in membership.members.values())
        done = False
        membership.put_links(links)
        self.mends = True
        if self._means.injection.rank_fails_switching and membership.generation == 1:
            log.warning("injected: a rank fails while links are switched")
            self._means.pods.kill(membership.members[0].identity, "injected")
        try:
            async with asyncio.timeout(limit):
                await procedures.rebuild(
                    membership, await self._means.store, dict(membership.members), Plan(step, stands=True), limit
                )
            done = True
            return ""
        except (RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except TimeoutError:
            failure = f"not all ranks were connected within {limit:g} s"
        finally:
            self.mends = False
            if not done:
                membership.put_links({rank: before[rank] for rank in links})
        await self._end_silent()
        return failure

    async def _undo(self, failure: str) -> str:
        """Moves all ranks back to the former links.

        Returns the failure with its result, once all ranks stand in a generation there.

        Raises:
            CannotRepair: not all ranks could be connected on the former links.
        """
        self.mends = True
        limit = self._means.rebuild_timeout
        repair = Repair(
            self._membership, await self._means.store, Nobody(self._membership), self._means.rebuild_timeout, stands=True
        )
        try:
            async with asyncio.timeout(limit):
                await repair.run()
            return f"{failure}; all ranks are on the links of before"
        except CannotRepair as error:
            raise CannotRepair(f"{failure}; back on the links of before: {error}") from error
        except TimeoutError:
            failure = f"{failure}; back on the links of before: not all ranks were connected within {limit:g} s"
        finally:
            self.mends = False
        await self._end_silent()
        raise CannotRepair(failure)

    async def _end_silent(self) -> None:
        """Kills the ranks that have not answered until the time-out."""
        await self._end([member for member in self._membership.members.values() if member.is_asked])

    async def _end(self, hanging: Collection[RankProcess]) -> None:
        """Kills ranks that hang, and waits until they are known to be lost.

        They would not answer in a recovery either, which waits for them. As lost ranks they are replaced, and this switch
        ends.
        """
        for member in hanging:
            log.warning("rank hung during link switch", extra={"rank": member.rank})
            self._means.pods.kill(member.identity, "it hangs while links are switched")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._membership.until(lambda: all(member.lost for member in hanging))


def _outcome(answer: "asyncio.Future[RankMessage]") -> RankMessage | BaseException:
    if not answer.done():
        return TimeoutError(f"no answer within {SWITCH_SECONDS:g} s")
    return answer.exception() or answer.result()


def _may_have(answer: RankMessage | BaseException, *, moves: bool) -> bool:
    """Returns whether the rank has moved, or may do so later. A rank that timed out may carry out its order at any time."""
    return isinstance(answer, TimeoutError) or (moves and isinstance(answer, RankMessage) and not answer.link_switched.problem)


def _problems(answers: Mapping[int, RankMessage | BaseException]) -> dict[int, str]:
    said = {rank: str(one) if isinstance(one, BaseException) else one.link_switched.problem for rank, one in answers.items()}
    return {rank: problem for rank, problem in said.items() if problem}


def _in_words(problems: Mapping[int, str]) -> str:
    rank, problem = min(problems.items())
    others = f", and {len(problems) - 1} other ranks failed" if len(problems) > 1 else ""
    return f"rank {rank}: {problem}{others}"
