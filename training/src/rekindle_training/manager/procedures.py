"""What the manager does with all ranks together: start them, pause them at one boundary, take them into a new generation.

Called by `hot_switch.py` and `conductor.py`. Each returns when every rank has answered, and raises when one is gone or failed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rank_process import RankProcess, launcher_of
from rekindle_training.manager.roster import Members, Roster
from rekindle_training.manager.store import Store
from rekindle_training.manager.watch import LOOK_SECONDS
from rekindle_wire.training_pb2 import Hold, ManagerMessage, PauseAt, RankMessage, Rebuild, Resume, Stand, Standing, Transfer

log = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
"""Ranks answer from a thread of their own, whatever the training loop is doing."""
PAUSE_SECONDS = 900.0
"""One step of training, at most: the control plane waits no longer for the report of the pause."""


class CannotPause(Exception):
    """There is nobody from whom training could go on."""


class NoReplica(Exception):
    """What a rank holds is held by no other one."""


class TrainingEnds(Exception):
    """At this very step: there is no boundary to stand at and go on from."""


@dataclass(frozen=True)
class Standstill:
    """All ranks stand at the boundary behind `step`."""

    step: int
    own_states: Mapping[int, bytes]
    """Of each rank: what no replica has."""
    replicas: Mapping[int, Collection[int]]
    """Of each rank: those that hold the same state; empty: all."""


@dataclass(frozen=True)
class Plan:
    """Where a new generation goes on, and who brings whom up to date."""

    step: int = 0
    transfers: tuple[tuple[int, int], ...] = ()
    own_states: Mapping[int, bytes] = field(default_factory=dict)
    begins: bool = False
    """There is nothing to go on from but a checkpoint, which all read."""
    stands: bool = False
    """All stand there, and nobody goes on yet."""


async def pause(roster: Roster, maintenance: str | None = None) -> Standstill:
    """Two phases, so that nobody is caught in a collective: all hold, then the ones behind catch up with the foremost.

    Args:
        maintenance: the attempt of one, for which ranks say that they are paused; None: it is a hot switch.
    """
    held = await _ask_all(roster, ManagerMessage(hold=Hold()), "held", HOLD_SECONDS)
    step = max(answer.held.step for answer in held.values())
    if step >= min(answer.held.total or step + 1 for answer in held.values()):
        raise TrainingEnds(f"training ends with step {step}")
    paused = await _ask_all(roster, ManagerMessage(pause_at=PauseAt(step=step, maintenance=maintenance)), "paused", PAUSE_SECONDS)
    log.info("paused", extra={"step": step})
    said = {rank: answer.paused for rank, answer in paused.items()}
    own_states = {rank: at.own_state for rank, at in said.items()}
    return Standstill(step, own_states, {rank: at.replicas for rank, at in said.items()})


async def stand(roster: Roster) -> dict[int, Standing]:
    """All that live leave what they are doing together, and say where they stand."""
    living = {rank: member for rank, member in roster.members.items() if rank not in roster.vacant}
    message = ManagerMessage(generation=roster.generation, stand=Stand())
    answers = await _answers({rank: member.ask(message, "standing") for rank, member in living.items()}, PAUSE_SECONDS)
    return {rank: answer.standing for rank, answer in answers.items()}


def greet(processes: Iterable[RankProcess]) -> list[asyncio.Future[RankMessage]]:
    """Answered at once by every process that lives."""
    return [process.ask(ManagerMessage(generation=process.generation, hold=Hold()), "held") for process in processes]


def succeeded(answer: asyncio.Future[RankMessage]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def release(roster: Roster) -> None:
    """Nobody is held any more. Who was not held does not notice."""
    _ask(roster, ManagerMessage(resume=Resume()), "stepped")


async def turn_away(roster: Roster, reason: str) -> None:
    """Backups that come when there is nothing more to take over: they would look for a manager that has ended. Until it is
    cancelled."""
    while True:
        await roster.until(lambda: any(not backup.dismissed for backup in roster.all_backups))
        roster.dismiss([backup for backup in roster.all_backups if not backup.dismissed], reason)


async def dismiss_late(roster: Roster, pods: Pods, reason: str, code: int) -> None:
    """Processes that were started in the pods of now, and say so later or not at all: nobody else would have them leave."""
    launchers = {launcher_of(process.process) for process in pods.processes}
    killed: set[str] = set()
    while here := [process for process in pods.processes if launcher_of(process.process) in launchers]:
        late = [*roster.starting.values(), *roster.all_backups]
        roster.dismiss([process for process in late if launcher_of(process.identity) in launchers], reason, code)
        for process in here:
            if not (process.HasField("ended") or process.process in killed or roster.knows(process.process)):
                killed.add(process.process)
                pods.kill(process.process, reason)
        await asyncio.sleep(LOOK_SECONDS)


async def resume(roster: Roster) -> dict[int, RankMessage]:
    """Training goes on where it stands; returns after one more completed step on all ranks."""
    return await _ask_all(roster, ManagerMessage(resume=Resume()), "stepped", None)


async def rebuild(roster: Roster, store: Store, members: Members, plan: Plan, limit: float) -> dict[int, RankMessage]:
    """Makes `members` the next generation; returns after one more completed step on all ranks, or when all stand in it."""
    roster.install(members)
    if plan.begins:
        roster.follow_links(members)
    answer = "paused" if plan.stands else "stepped"
    asked = {rank: members[rank].ask(_invitation(roster, store, plan, rank, limit), answer) for rank in sorted(members)}
    log.info("rebuilding", extra={"generation": roster.generation, "step": plan.step})
    return await _answers(asked, None)


def sources(
    survivors: Collection[int], replaced: Iterable[int], replicas: Mapping[int, Collection[int]]
) -> tuple[tuple[int, int], ...]:
    """Each replacement takes its state from a survivor that holds it, from one that has sent least until then.

    Args:
        replicas: of each survivor, the ranks that hold the same state as it; empty: all.

    Raises:
        NoReplica: no survivor holds the state of one of the replaced ranks.
    """
    sent: Counter[int] = Counter()
    pairs = []
    for target in sorted(replaced):
        holders = [rank for rank in survivors if not replicas[rank] or target in replicas[rank]]
        if not holders:
            raise NoReplica(f"no rank that is left holds the shard of rank {target}")
        source = min(holders, key=lambda rank: (sent[rank], rank))
        sent[source] += 1
        pairs.append((source, target))
    return tuple(pairs)


def _invitation(roster: Roster, store: Store, plan: Plan, rank: int, limit: float) -> ManagerMessage:
    replaced = {target for _, target in plan.transfers}
    invitation = Rebuild(
        store_port=store.port,
        store_prefix=store.prefix(roster.generation),
        world_size=roster.world_size,
        timeout_seconds=limit,
        step=plan.step,
        transfers=[Transfer(source=source, target=target) for source, target in plan.transfers],
        own_state=plan.own_states.get(rank, b"") if rank in replaced else b"",
        begins=plan.begins,
        stands=plan.stands,
        backup_link=roster.uses_backup_link(roster.members[rank]),
    )
    return ManagerMessage(generation=roster.generation, rebuild=invitation)


async def _ask_all(roster: Roster, message: ManagerMessage, answer: str, limit: float | None) -> dict[int, RankMessage]:
    return await _answers(_ask(roster, message, answer), limit)


async def _answers(asked: Mapping[int, asyncio.Future[RankMessage]], limit: float | None) -> dict[int, RankMessage]:
    """Not by `asyncio.gather`: it forgets that it was cancelled when one of them fails in the same moment."""
    if asked:
        async with asyncio.timeout(limit):
            done, _ = await asyncio.wait(asked.values(), return_when=asyncio.FIRST_EXCEPTION)
        for answer in done:
            answer.result()
    return {rank: answer.result() for rank, answer in asked.items()}


def _ask(roster: Roster, message: ManagerMessage, answer: str) -> dict[int, asyncio.Future[RankMessage]]:
    message.generation = roster.generation
    return {rank: process.ask(message, answer) for rank, process in sorted(roster.members.items())}
