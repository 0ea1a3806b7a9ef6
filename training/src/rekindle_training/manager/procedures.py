"""Procedures with all ranks together: start them, pause them at one boundary, and take them into a new generation.

Called by `hot_switch.py` and `coordinator.py`. Each returns when every rank has answered, and raises when one is gone or failed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rekindle_training.manager.membership import Members, Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rank_process import RankProcess, launcher_of
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.watch import LOOK_SECONDS
from rekindle_wire.training_pb2 import (
    Hold,
    ManagerMessage,
    PauseAt,
    RankMessage,
    Rebuild,
    Resume,
    Share,
    Stand,
    Standing,
    Transfer,
)

log = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
"""Seconds to wait for the answers to a hold. Ranks answer in a separate thread, whatever the training loop is doing."""
SPANS = {"held": "hold", "paused": "pause", "stepped": "go on"}
"""Names of what ranks do together, for traces, by their answers."""
PAUSE_SECONDS = 900.0
"""Seconds to wait for a pause, which takes one step at most. The control plane waits no longer for the report."""


class CannotPause(Exception):
    """No rank is left from which training could go on."""


class NoReplica(Exception):
    """No other rank holds the state of a rank."""


class TrainingEnds(Exception):
    """Training ends with the current step, so there is no boundary at which to pause and from which to go on."""


@dataclass(frozen=True)
class Standstill:
    """Result of a pause: all ranks stand at the boundary after `step`."""

    step: int
    own_states: Mapping[int, bytes]
    """State of each rank that no replica has, by rank."""
    replicas: Mapping[int, Collection[int]]
    """Ranks that hold the same state as each rank, by rank. Empty: all ranks do."""


@dataclass(frozen=True)
class Plan:
    """Step at which a new generation goes on, and the transfers of state that it needs."""

    step: int = 0
    transfers: tuple[tuple[int, int], ...] = ()
    own_states: Mapping[int, bytes] = field(default_factory=dict)
    begins: bool = False
    """True if all ranks read the checkpoint, because nothing else is left to go on from."""
    from_snapshots: bool = False
    """True if all ranks go back to their snapshots of this step."""
    stands: bool = False
    """True if all ranks stand after the rebuild until the order to go on."""
    carriers: tuple[int, ...] = ()
    """Rank that carries each share from now on. Empty: as before, or as at full size where all begin."""
    shares: Mapping[int, Sequence[Share]] = field(default_factory=dict)
    """Shares that ranks are sent, by rank."""


async def pause(membership: Membership, maintenance: str | None = None) -> Standstill:
    """Pauses all ranks at one step boundary.

    All hold first, and then catch up with the foremost rank, so that no rank is held in a collective.

    Args:
        maintenance: attempt of the maintenance for which ranks report that they are paused. None: a hot switch.
    """
    held = await _ask_all(membership, ManagerMessage(hold=Hold()), "held", HOLD_SECONDS)
    step = max(answer.held.step for answer in held.values())
    if step >= min(answer.held.total or step + 1 for answer in held.values()):
        raise TrainingEnds(f"training ends with step {step}")
    paused = await _ask_all(
        membership, ManagerMessage(pause_at=PauseAt(step=step, maintenance=maintenance)), "paused", PAUSE_SECONDS
    )
    log.info("training paused", extra={"step": step})
    said = {rank: answer.paused for rank, answer in paused.items()}
    own_states = {rank: at.own_state for rank, at in said.items()}
    return Standstill(step, own_states, {rank: at.replicas for rank, at in said.items()})


async def stand(membership: Membership) -> dict[int, Standing]:
    """Makes all live ranks leave their step together. Returns where each of them stands."""
    living = {rank: member for rank, member in membership.members.items() if rank not in membership.vacant}
    membership.stopped = membership.generation
    message = ManagerMessage(generation=membership.generation, stand=Stand())
    asked = {rank: member.ask(message, "standing") for rank, member in living.items()}
    with membership.spans.record("stand", asked):
        answers = await all_answers(asked, PAUSE_SECONDS)
    return {rank: answer.standing for rank, answer in answers.items()}


def greet(processes: Iterable[RankProcess]) -> list[asyncio.Future[RankMessage]]:
    """Sends each process a message that every live process answers immediately. Returns the pending answers."""
    return [process.ask(ManagerMessage(generation=process.generation, hold=Hold()), "held") for process in processes]


def succeeded(answer: asyncio.Future[RankMessage]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def release(membership: Membership) -> None:
    """Releases all ranks that are held. The others are not affected."""
    _ask(membership, ManagerMessage(resume=Resume()), "stepped")
    for member in membership.members.values():
        member.paused = False  # an order that comes before its next step finds that training goes on


async def turn_away(membership: Membership, reason: str) -> None:
    """Dismisses backups that arrive when no rank is left to take over. Otherwise they would look for a manager that has ended.

    Never returns.
    """
    while True:
        await membership.until(lambda: any(not backup.dismissed for backup in membership.all_backups))
        membership.dismiss([backup for backup in membership.all_backups if not backup.dismissed], reason)


async def dismiss_late(membership: Membership, pods: Pods, reason: str, code: int) -> None:
    """Dismisses or kills processes that were started in the current pods and report late or never.

    No other procedure does so.
    """
    launchers = {launcher_of(process.process) for process in pods.processes}
    killed: set[str] = set()
    while here := [process for process in pods.processes if launcher_of(process.process) in launchers]:
        late = [*membership.starting.values(), *membership.all_backups]
        membership.dismiss([process for process in late if launcher_of(process.identity) in launchers], reason, code)
        for process in here:
            if not (process.HasField("ended") or process.process in killed or membership.knows(process.process)):
                killed.add(process.process)
                pods.kill(process.process, reason)
        await asyncio.sleep(LOOK_SECONDS)


async def resume(membership: Membership) -> dict[int, RankMessage]:
    """Resumes training. Returns after one more step was completed on all ranks."""
    return await _ask_all(membership, ManagerMessage(resume=Resume()), "stepped", None)


async def rebuild(membership: Membership, store: Store, members: Members, plan: Plan, limit: float) -> dict[int, RankMessage]:
    """Makes `members` the next generation. Returns after one more step on all ranks, or when all stand in the new generation."""
    membership.install(members, membership.at_full_size if plan.begins else plan.carriers)
    if plan.begins:
        membership.follow_links(members)
    answer = "paused" if plan.stands else "stepped"
    asked = {rank: members[rank].ask(_invitation(membership, store, plan, rank, limit), answer) for rank in sorted(members)}
    log.info("rebuild started", extra={"generation": membership.generation, "step": plan.step})
    with membership.spans.record("rebuild", asked):
        return await all_answers(asked, None)


def sources(
    survivors: Collection[int], replaced: Iterable[int], replicas: Mapping[int, Collection[int]]
) -> tuple[tuple[int, int], ...]:
    """Chooses for each replaced rank a survivor that holds its state. The survivor with the fewest transfers is taken.

    Args:
        replicas: ranks that hold the same state as a survivor, by survivor. Empty: all ranks do.

    Returns:
        Pairs of a survivor and a replaced rank.

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


def _invitation(membership: Membership, store: Store, plan: Plan, rank: int, limit: float) -> ManagerMessage:
    replaced = {target for _, target in plan.transfers}
    invitation = Rebuild(
        store_port=store.port,
        store_prefix=store.prefix(membership.generation),
        world_size=len(membership.members),
        timeout_seconds=limit,
        step=plan.step,
        transfers=[Transfer(source=source, target=target) for source, target in plan.transfers],
        own_state=plan.own_states.get(rank, b"") if rank in replaced else b"",
        begins=plan.begins,
        stands=plan.stands,
        backup_link=membership.uses_backup_link(membership.members[rank]),
        carriers=membership.carriers if membership.missing else (),
        shares=plan.shares.get(rank, ()),
        from_snapshots=plan.from_snapshots,
    )
    return ManagerMessage(generation=membership.generation, rebuild=invitation)


async def _ask_all(membership: Membership, message: ManagerMessage, answer: str, limit: float | None) -> dict[int, RankMessage]:
    asked = _ask(membership, message, answer)
    with membership.spans.record(SPANS[answer], asked):
        return await all_answers(asked, limit)


async def all_answers(asked: Mapping[int, asyncio.Future[RankMessage]], limit: float | None) -> dict[int, RankMessage]:
    """Waits for all answers and returns them by rank. The first error is raised.

    `asyncio.gather` is not used: it forgets that it was cancelled when one of them fails at the same moment.
    """
    if asked:
        async with asyncio.timeout(limit):
            done, _ = await asyncio.wait(asked.values(), return_when=asyncio.FIRST_EXCEPTION)
        for answer in done:
            answer.result()
    return {rank: answer.result() for rank, answer in asked.items()}


def _ask(membership: Membership, message: ManagerMessage, answer: str) -> dict[int, asyncio.Future[RankMessage]]:
    message.generation = membership.generation
    return {rank: process.ask(message, answer) for rank, process in sorted(membership.members.items())}
