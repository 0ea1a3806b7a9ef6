"""All processes of a job: the members of the current generation, the processes that wait for their first one, and the backups.

Filled by `service.py` as processes say hello, read by the procedures. Processes of an earlier generation are ordered to leave.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rekindle_training import names
from rekindle_training.manager.rank_process import LOST_OTHERS, Outbox, RankProcess, StepFailed, launcher_of
from rekindle_training.manager.spans import Spans
from rekindle_wire.training_pb2 import Hello, RankMessage

log = logging.getLogger(__name__)

GONE_CODE = 1
TOLD_AGAIN_SECONDS = 120.0
"""Seconds in which a control plane has repeated all its orders to a new manager. A gateway may be away for a while."""
TURNED_AWAY = "another pod has these ranks"

Members = dict[int, RankProcess]
"""Processes by rank."""


class Doubted(NamedTuple):
    """A step that does not end, because ranks begin different collectives in it."""

    generation: int
    step: int
    groups: Mapping[int, Mapping[str, int]]
    """Number of collectives that each rank had begun, by rank and group name."""


class Membership:
    """All processes of one job."""

    parts = 1
    """Number of shares of each rank at full size, as the ranks say."""

    def __init__(self, world_size: int, ranks_per_pod: int = 1) -> None:
        self.world_size, self._ranks_per_pod = world_size, ranks_per_pod
        self.on_lost: Callable[[RankProcess], None] = lambda _: None
        """Called with each member that is gone without a goodbye."""
        self.lives: Callable[[str], bool] = lambda _: False
        """Returns whether the process of this name lives and is the latest of its rank. It may be silent."""
        self.on_standing: Callable[[RankProcess], None] = lambda _: None
        """Called with each member that reports where it stands, asked or not."""
        self.on_heard: Callable[[RankProcess, RankMessage], None] = lambda _process, _message: None
        """Called with each message of a process."""
        self.generation = 0
        self.carriers = self.at_full_size
        """Rank that carries each share. Ranks that carry none are missing."""
        self.stopped = 0
        """Generation whose ranks were asked to stand, the last one."""
        self.took_over = False
        """True if ranks were members of a generation when this manager met them."""
        self._took_over_at = 0.0
        self.torn = False
        """True if the members that were met do not belong to one generation: an earlier manager died during a rebuild."""
        self.doubted: Doubted | None = None
        """Step that was stopped twice, because some ranks waited in a vote and others did not reach it."""
        self.stepped = False
        """True if a step was completed since all ranks began together."""
        self.on_first_step: Callable[[], None] = lambda: None
        """Called after that first step."""
        self.members: Members = {}
        self.starting: Members = {}
        self.all_backups: list[RankProcess] = []
        """Backups in the order in which they arrived. Several pods may wait for the same ranks."""
        self._turned_away: set[str] = set()
        """Launchers of pods whose ranks others have taken."""
        self.last_words: dict[str, tuple[int, str]] = {}
        """Ranks and errors of processes whose script failed, by process name, in the order of their failures."""
        self._known: dict[str, RankProcess] = {}
        self._trained: set[str] = set()
        """Names of the processes that were members."""
        self._links: dict[tuple[int, str], bool] = {}
        """Links that this manager has set, by rank and launcher: True if the rank uses the second link of its pod."""
        self._changed = asyncio.Event()
        self.spans = Spans()

    # What the procedures ask.

    @property
    def has_just_taken_over(self) -> bool:
        """True for some time after a takeover, while the control plane repeats its earlier orders to this manager."""
        return self.took_over and time.monotonic() - self._took_over_at < TOLD_AGAIN_SECONDS

    @property
    def at_full_size(self) -> tuple[int, ...]:
        """Rank that carries each share while no rank is missing."""
        return tuple(range(self.world_size)) * self.parts

    @property
    def present(self) -> frozenset[int]:
        """Ranks of this generation. Others are missing, and training goes on without them."""
        return frozenset(self.carriers)

    @property
    def missing(self) -> list[int]:
        return sorted(set(range(self.world_size)) - self.present)

    @property
    def complete(self) -> bool:
        return len(self.members) == len(self.present)

    @property
    def ready_to_start(self) -> bool:
        return len(self.starting) == self.world_size

    @property
    def paused(self) -> bool:
        return self.complete and all(member.paused for member in self.members.values())

    @property
    def training(self) -> bool:
        """Returns whether every rank has completed a step or stands after one, so that training has a state to go on from."""
        return self.complete and all(member.stepped or member.paused for member in self.members.values())

    @property
    def finished(self) -> bool:
        """Returns whether every rank has said goodbye."""
        return self.complete and all(member.finished for member in self.members.values())

    @property
    def backups(self) -> Members:
        """Backups by rank, from one pod for each pod rank: the one with most waiting processes, and the newest of equal ones."""
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
        """Returns members of an earlier generation. They stand where they paused until their pod is deleted."""
        return [process for process in self._known.values() if 0 < process.generation < self.generation]

    @property
    def vacant(self) -> frozenset[int]:
        """Ranks that have no live member."""
        gone = {rank for rank, member in self.members.items() if member.lost and not member.finished}
        return self.present - (self.members.keys() - gone)

    @property
    def standing(self) -> RankProcess | None:
        """Returns a member that waits for another generation. None: no member does."""
        return next((member for member in self.members.values() if member.stands and not member.dismissed), None)

    @property
    def links(self) -> dict[int, bool]:
        """Returns for each member whether it uses the second link of its pod. A new pod begins on its first link."""
        return {rank: self.uses_backup_link(member) for rank, member in self.members.items()}

    def uses_backup_link(self, process: RankProcess) -> bool:
        return self._links.get((process.rank, launcher_of(process.identity)), process.said_backup_link)

    def put_links(self, links: Mapping[int, bool]) -> None:
        """Sets the links of members for the next generations."""
        for rank, backup in links.items():
            self._links[rank, launcher_of(self.members[rank].identity)] = backup

    def follow_links(self, new: Collection[int]) -> None:
        """Moves new members to their second links if all other members use theirs.

        If all ranks begin together, they move as soon as one of them cannot use its first link.

        Args:
            new: ranks of the new members.
        """
        links = self.links
        others = links.keys() - set(new)
        if all(links[rank] for rank in others) if others else any(links.values()):
            self.put_links(dict.fromkeys(new, True))

    def knows(self, identity: str) -> bool:
        return identity in self._known

    def has_trained(self, identity: str) -> bool:
        """Returns whether the process was a member, as far as this manager has seen."""
        return identity in self._trained

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def install(self, members: Mapping[int, RankProcess], carriers: Sequence[int] = ()) -> None:
        """Begins a new generation. Former members that are no longer members are ignored from now on.

        Args:
            carriers: rank that carries each share from now on. Empty: as before.
        """
        self.generation += 1
        self.carriers = tuple(carriers) or self.carriers
        self.torn = False
        self.members = dict(members)
        for process in members.values():
            process.generation, process.stepped, process.stands, process.stranded = self.generation, 0, False, False
            process.leaving, process.collectives, process.votes, process.groups = None, 0, False, {}
            self._trained.add(process.identity)
            self._forget(process)
        self._change()

    def turn_away(self, launchers: Collection[str]) -> None:
        """Orders the backups of these pods to leave, also those that arrive later, unless they are members."""
        self._turned_away |= set(launchers) - {launcher_of(member.identity) for member in self.members.values()}
        late = [process for process in self.all_backups if launcher_of(process.identity) in self._turned_away]
        self.dismiss(late, TURNED_AWAY)

    def leave_out(self, ranks: Collection[int], carriers: Sequence[int]) -> None:
        """Takes ranks out of the current generation, which has failed: others carry their shares as before."""
        self.carriers = tuple(carriers)
        self.members = {rank: member for rank, member in self.members.items() if rank not in ranks}
        self._change()

    def reinstate(self, processes: Iterable[RankProcess]) -> None:
        """Gives the members of the previous generation their ranks back, because the generation after it failed.

        They belong to no generation, and go on with the next one. A process that was ordered to leave meanwhile gets no rank.
        """
        for process in processes:
            if not process.dismissed:
                process.generation = self.generation
                self.members[process.rank] = process
        self._change()

    # What the service brings.

    def shape_problem(self, hello: Hello) -> str:
        """Returns the problem with a process's view of the job's size. Empty: it is right, or the process does not report it.

        With another size, its rank would be another rank here, and all ranks would wait for each other without an error.
        """
        said, own = (hello.world_size, hello.ranks_per_pod), (self.world_size, self._ranks_per_pod)
        if said in (own, (0, 0)):
            return ""
        return (
            f"rank {hello.rank}: its launcher has {said[0]} ranks, {said[1]} in each pod; accepted is what --nnodes and "
            f"--nproc-per-node of rekindle-manager say: {own[0]} ranks, {own[1]} in each pod"
        )

    def parts_problem(self, hello: Hello) -> str:
        """Returns the problem with the number of parts of a process's shares. Empty: it is that of the others, or it is alone."""
        others = [process for process in self._known.values() if process.identity != hello.process and not process.dismissed]
        said = hello.parts or 1
        if not others or said == self.parts:
            return ""
        return (
            f"rank {hello.rank}: its data are shares(parts={said}), and those of rank {others[0].rank} are "
            f"shares(parts={self.parts}); accepted is the same number on all ranks"
        )

    def enroll(self, hello: Hello, generation: int) -> tuple[RankProcess, Outbox]:
        if (hello.parts or 1) != self.parts:
            self.parts = hello.parts or 1
            self.carriers = self.at_full_size
        process = self._known.get(hello.process) or RankProcess(hello, self._lose, self.lives)
        self._known[hello.process] = process
        outbox = process.attach(hello, max(generation, process.generation))
        self._place(process)
        self._change()
        return process, outbox

    def hear_last_words(self, hello: Hello) -> None:
        """Notes the error by which a process ended. The same error of several processes is logged once."""
        if not any(hello.last_words == words for _, words in self.last_words.values()):
            log.warning("script of a rank failed", extra={"rank": hello.rank, "reason": hello.last_words})
        self.last_words[hello.process] = hello.rank, hello.last_words

    def hear(self, process: RankProcess, message: RankMessage) -> None:
        kind = message.WhichOneof("kind") or ""
        process.stranded |= kind == "failed" and message.generation > process.generation
        if message.generation != process.generation:
            return
        process.hear(kind, message, stopped=self.stopped == self.generation)
        self.on_heard(process, message)
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
        """Notes which process has this rank, according to its launcher.

        Other processes of the rank are lost. Empty: no process has it.
        """
        for process in list(self._known.values()):
            if process.rank == rank and process.identity != identity and not process.lost:
                process.lose()
                process.leave(self.generation, "its launcher says that it has ended", GONE_CODE)  # in case it lives
        self._change()

    def ended(self, identity: str) -> None:
        """Marks a process as lost: it has ended, or is as good as ended."""
        if (process := self._known.get(identity)) is not None and not process.lost:
            process.lose()

    def give_up(self, ranks: Iterable[int]) -> None:
        """Gives up silent processes of these ranks, which others report as lost."""
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
            log.info("process registered", extra={"rank": process.rank, "role": process.role})
        elif process.generation < self.generation and self._may_follow(process):
            process.generation, self.torn = self.generation, True
            self.members[process.rank] = process
            self._trained.add(process.identity)
        elif process.generation < self.generation:
            process.leave(self.generation, "another process has taken over this rank")
        else:
            self._follow(process.generation, process.carriers)
            self.members[process.rank] = process
            self._trained.add(process.identity)

    def _may_follow(self, process: RankProcess) -> bool:
        """Returns whether a process of an earlier generation is to join the next one.

        Otherwise a live member has its rank, or training goes on without it: its pod is not deleted yet.
        """
        member = self.members.get(process.rank)
        is_followed = member is not None and member is not process and not member.lost
        return self.lives(process.identity) and process.rank in self.present and not is_followed

    def _follow(self, generation: int, carriers: Sequence[int]) -> None:
        """Takes over a newer generation, which a new manager learns from the ranks."""
        if generation > self.generation:
            log.info("process replaced by another", extra={"generation": generation})
            self.generation, self.took_over, self._took_over_at = generation, True, time.monotonic()
            self.carriers = tuple(carriers) or self.at_full_size
            here = {rank: member for rank, member in self.members.items() if rank in self.present}
            stay = {rank: member for rank, member in here.items() if self.lives(member.identity)}
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
        """Removes a process that waits no more from the starting processes and the backups."""
        if self.starting.get(process.rank) is process:
            del self.starting[process.rank]
        if process in self.all_backups:
            self.all_backups.remove(process)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
