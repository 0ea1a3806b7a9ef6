"""Who is who: the members of the current generation, the processes that wait for their first one, and the backups.

Filled by `service.py` as processes say hello, read by the procedures. What belongs to an earlier generation is told to leave.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from rekindle_training import names
from rekindle_training.manager.rank_process import LOST_OTHERS, Outbox, RankProcess, StepFailed, launcher_of
from rekindle_wire.training_pb2 import Hello, RankMessage

log = logging.getLogger(__name__)

GONE_CODE = 1
TOLD_AGAIN_SECONDS = 120.0
"""In which a control plane has told a new manager all that the one before was told; a gateway may be away for a while."""
TURNED_AWAY = "another pod has these ranks"

Members = dict[int, RankProcess]
"""Processes by rank."""


class Doubted(NamedTuple):
    """A step that does not end, since ranks make other collectives in it."""

    generation: int
    step: int
    groups: Mapping[int, Mapping[str, int]]
    """Collectives that each rank had begun by then, by their group."""


class Roster:
    """All processes of one job."""

    def __init__(self, world_size: int, ranks_per_pod: int = 1) -> None:
        self.world_size = world_size
        self._ranks_per_pod = ranks_per_pod
        self.on_lost: Callable[[RankProcess], None] = lambda _: None
        """Hears of members that are gone without a goodbye."""
        self.lives: Callable[[str], bool] = lambda _: False
        """Whether the process of this name is known to live, and to be the latest of its rank, although it may be silent."""
        self.on_standing: Callable[[RankProcess], None] = lambda _: None
        """Hears of members that say where they stand, asked or not."""
        self.generation = 0
        self.took_over = False
        """Ranks were members of a generation when this manager met them."""
        self._took_over_at = 0.0
        self.torn = False
        """Members were met that do not belong to one generation: whoever led them to the next one did not live to its end."""
        self.doubted: Doubted | None = None
        """A step that was broken off twice, since some ranks waited in a vote and others did not come to it."""
        self.stepped = False
        """A step was completed since all began together."""
        self.on_first_step: Callable[[], None] = lambda: None
        """Hears of the first one."""
        self.members: Members = {}
        self.starting: Members = {}
        self.all_backups: list[RankProcess] = []
        """In the order in which they came; of several pods that wait for the same ranks, too."""
        self._turned_away: set[str] = set()
        """Launchers of pods whose ranks others have taken."""
        self.last_words: dict[str, tuple[int, str]] = {}
        """Ranks and errors of processes of which the script failed, by their names, in this order."""
        self._known: dict[str, RankProcess] = {}
        self._trained: set[str] = set()
        """Processes that were members, by their names."""
        self._links: dict[tuple[int, str], bool] = {}
        """Of ranks, by their numbers and launchers: whether they use their pod's second link, as this manager had it."""
        self._changed = asyncio.Event()

    # What the procedures ask.

    @property
    def has_just_taken_over(self) -> bool:
        """What was ordered until then is told again about now."""
        return self.took_over and time.monotonic() - self._took_over_at < TOLD_AGAIN_SECONDS

    @property
    def complete(self) -> bool:
        return len(self.members) == self.world_size

    @property
    def ready_to_start(self) -> bool:
        return len(self.starting) == self.world_size

    @property
    def paused(self) -> bool:
        return self.complete and all(member.paused for member in self.members.values())

    @property
    def training(self) -> bool:
        """Every rank has completed a step, or stands behind one: there is something to go on from."""
        return self.complete and all(member.stepped or member.paused for member in self.members.values())

    @property
    def finished(self) -> bool:
        """Every rank said goodbye."""
        return self.complete and all(member.finished for member in self.members.values())

    @property
    def backups(self) -> Members:
        """Those of one pod for each pod rank: the newest of which all processes wait, or most."""
        pods: dict[tuple[int, str], Members] = {}
        for process in self.all_backups:
            pod = process.rank // self._ranks_per_pod, launcher_of(process.identity)
            pods.setdefault(pod, {})[process.rank] = process
        chosen: dict[int, Members] = {}
        for (pod_rank, _), members in pods.items():
            if len(members) >= len(chosen.get(pod_rank, {})):
                chosen[pod_rank] = members
        return {rank: process for members in chosen.values() for rank, process in members.items()}

    @property
    def retired(self) -> list[RankProcess]:
        """Were members of an earlier generation. They stand where they paused until their pod is deleted."""
        return [process for process in self._known.values() if 0 < process.generation < self.generation]

    @property
    def vacant(self) -> frozenset[int]:
        """Ranks of which no process lives that is a member."""
        gone = {rank for rank, member in self.members.items() if member.lost and not member.finished}
        return frozenset(range(self.world_size)) - (self.members.keys() - gone)

    @property
    def standing(self) -> RankProcess | None:
        """One that waits for another generation, if there is one."""
        return next((member for member in self.members.values() if member.stands and not member.dismissed), None)

    @property
    def links(self) -> dict[int, bool]:
        """Whether the members use the second links of their pods. A new pod begins on its first one."""
        return {rank: self.uses_backup_link(member) for rank, member in self.members.items()}

    def uses_backup_link(self, process: RankProcess) -> bool:
        return self._links.get((process.rank, launcher_of(process.identity)), process.said_backup_link)

    def put_links(self, links: Mapping[int, bool]) -> None:
        """Of members, for the generations that follow."""
        for rank, backup in links.items():
            self._links[rank, launcher_of(self.members[rank].identity)] = backup

    def follow_links(self, new: Collection[int]) -> None:
        """Members that came new go to their second links where that is where all others are, or where some of those that begin
        together cannot use their first ones.

        Args:
            new: their ranks.
        """
        links = self.links
        others = links.keys() - set(new)
        if all(links[rank] for rank in others) if others else any(links.values()):
            self.put_links(dict.fromkeys(new, True))

    def knows(self, identity: str) -> bool:
        return identity in self._known

    def has_trained(self, identity: str) -> bool:
        """As a member, as far as this manager has seen it."""
        return identity in self._trained

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def install(self, members: Mapping[int, RankProcess]) -> None:
        """A new generation. Whoever was a member and is none any more is fenced from here on."""
        self.generation += 1
        self.torn = False
        self.members = dict(members)
        for process in members.values():
            process.generation, process.stepped, process.stands, process.stranded = self.generation, 0, False, False
            process.leaving, process.collectives, process.votes, process.groups = None, 0, False, {}
            self._trained.add(process.identity)
            self._forget(process)
        self._change()

    def turn_away(self, launchers: Collection[str]) -> None:
        """Processes of these pods leave, also those that have not come yet, unless they are members."""
        self._turned_away |= set(launchers) - {launcher_of(member.identity) for member in self.members.values()}
        late = [process for process in self.all_backups if launcher_of(process.identity) in self._turned_away]
        self.dismiss(late, TURNED_AWAY)

    def reinstate(self, processes: Iterable[RankProcess]) -> None:
        """Members of the generation before have their ranks again: the one that was to follow it came to nothing. They belong to
        none, and go on with the next one. Who was told to leave by then has no rank any more."""
        for process in processes:
            if not process.dismissed:
                process.generation = self.generation
                self.members[process.rank] = process
        self._change()

    # What the service brings.

    def shape_problem(self, hello: Hello) -> str:
        """Returns what is wrong with the size of the job as a process knows it; empty: nothing, or it does not say. Its rank
        would be another's here, and all would wait for each other without a word."""
        said, own = (hello.world_size, hello.ranks_per_pod), (self.world_size, self._ranks_per_pod)
        if said in (own, (0, 0)):
            return ""
        return (
            f"rank {hello.rank}: its launcher has {said[0]} ranks, {said[1]} in each pod; accepted is what --nnodes and "
            f"--nproc-per-node of rekindle-manager say: {own[0]} ranks, {own[1]} in each pod"
        )

    def enroll(self, hello: Hello, generation: int) -> tuple[RankProcess, Outbox]:
        process = self._known.get(hello.process) or RankProcess(hello, self._lose, self.lives)
        self._known[hello.process] = process
        outbox = process.attach(hello, max(generation, process.generation))
        self._place(process)
        self._change()
        return process, outbox

    def hear_last_words(self, hello: Hello) -> None:
        """Notes the error by which a process ends. What several of them say is logged once."""
        if not any(hello.last_words == words for _, words in self.last_words.values()):
            log.warning("the script of a rank failed", extra={"rank": hello.rank, "reason": hello.last_words})
        self.last_words[hello.process] = hello.rank, hello.last_words

    def hear(self, process: RankProcess, message: RankMessage) -> None:
        kind = message.WhichOneof("kind") or ""
        process.stranded |= kind == "failed" and message.generation > process.generation
        if message.generation != process.generation:
            return
        process.hear(kind, message)
        if kind == "stepped" and not self.stepped:
            self.stepped = True
            self.on_first_step()
        if kind == "standing" and self.members.get(process.rank) is process:
            for member in self.members.values():
                member.completes_no_step(StepFailed(f"rank {process.rank}: {message.standing.reason or LOST_OTHERS}"))
            self.on_standing(process)
        self._change()

    def depart(self, process: RankProcess, outbox: Outbox) -> None:
        process.detach(outbox)
        self._change()

    def follow(self, rank: int, identity: str) -> None:
        """The launcher says which process has this rank; others that had it are no more. Empty: none has."""
        for process in list(self._known.values()):
            if process.rank == rank and process.identity != identity and not process.lost:
                process.lose()
                process.leave(self.generation, "its launcher says that it has ended", GONE_CODE)  # to who lives all the same
        self._change()

    def ended(self, identity: str) -> None:
        """This process is no more, or as good as that."""
        if (process := self._known.get(identity)) is not None and not process.lost:
            process.lose()

    def give_up(self, ranks: Iterable[int]) -> None:
        """Others say that these are lost: those that are silent are not waited for."""
        for member in [self.members[rank] for rank in ranks if rank in self.members]:
            if not member.connected and not member.lost:
                member.lose()

    def _place(self, process: RankProcess) -> None:
        if process.dismissed:
            return
        if process.generation == 0 and launcher_of(process.identity) in self._turned_away:
            process.leave(self.generation, TURNED_AWAY)
        elif process.generation == 0:
            if process.role != names.BACKUP:
                self.starting[process.rank] = process
            elif process not in self.all_backups:
                self.all_backups.append(process)
            log.info("registered", extra={"rank": process.rank, "role": process.role})
        elif process.generation < self.generation and self.lives(process.identity) and not self._is_followed(process):
            process.generation, self.torn = self.generation, True
            self.members[process.rank] = process
            self._trained.add(process.identity)
        elif process.generation < self.generation:
            process.leave(self.generation, "another process has taken over this rank")
        else:
            self._follow(process.generation)
            self.members[process.rank] = process
            self._trained.add(process.identity)

    def _is_followed(self, process: RankProcess) -> bool:
        """A member of this generation has its rank: its own pod was replaced, and has not been deleted yet."""
        member = self.members.get(process.rank)
        return member is not None and member is not process and not member.lost

    def _follow(self, generation: int) -> None:
        """A manager that took over learns from the ranks which generation is the current one."""
        if generation > self.generation:
            log.info("took over", extra={"generation": generation})
            self.generation, self.took_over, self._took_over_at = generation, True, time.monotonic()
            stay = {rank: member for rank, member in self.members.items() if self.lives(member.identity)}
            self.dismiss(
                [self.members[rank] for rank in self.members.keys() - stay.keys()], "another process has taken over this rank"
            )
            self.members, self.torn = stay, bool(stay)
            for member in stay.values():
                member.generation = generation

    def dismiss(self, processes: Iterable[RankProcess], reason: str, exit_code: int = 0) -> None:
        for process in list(processes):
            process.leave(self.generation, reason, exit_code)
            self._forget(process)

    def _lose(self, process: RankProcess) -> None:
        self._known.pop(process.identity, None)
        self._forget(process)
        if self.members.get(process.rank) is process:
            self.on_lost(process)
        self._change()

    def _forget(self, process: RankProcess) -> None:
        """It does not wait any more."""
        if self.starting.get(process.rank) is process:
            del self.starting[process.rank]
        if process in self.all_backups:
            self.all_backups.remove(process)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
