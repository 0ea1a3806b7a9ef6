"""Default process group of a rank, from one generation to the next, with all connections that its collectives use."""

import atexit
import contextlib
import os
import queue
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from rekindle_training.adapter import sockets
from rekindle_training.adapter.last_group import end_group, meet_by_store
from rekindle_training.adapter.lines import LineLost, Lines
from rekindle_training.adapter.links import Links
from rekindle_training.adapter.places import Places
from rekindle_training.adapter.shared_vote import RankLeft, is_shared, shared
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.vote import Vote
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate, Join
from rekindle_wire.training_pb2 import Rebuild

_OWN_GROUPS = "own groups"
"""Key in the store under which the ranks that stay write the number of groups that they have made."""

CONNECT_SECONDS = 10.0
"""Seconds to connect to the store, which the manager holds."""
LOOK_SECONDS = 0.05
"""Seconds without a connection after which it is checked whether the connection is still wanted."""
JOIN_SECONDS = 8.0
"""Maximum seconds from the moment in which all members are there until they are connected.

A little is added for each of them.
"""


def accelerator_module() -> str | None:
    """Returns the name of the module `torch.<name>` of this process's accelerator. None: there is none."""
    if torch.cuda.is_available():
        return "cuda"
    if hasattr(torch, "npu") and torch.npu.is_available():
        return "npu"
    return None


def refuse_another() -> None:
    """Raises RuntimeError where the script has made a default process group itself."""
    if dist.is_initialized():
        raise RuntimeError(
            "session(): the default process group is there already; leave `init_process_group` out: the session makes the group, "
            "and recreates it in each recovery"
        )


class GivenUp(RuntimeError):
    """A generation was cut before it was complete."""


_LOSSES = (dist.DistError, GivenUp, LineLost, RankLeft)
"""Errors that only a collective or a vote of this generation raises."""


def is_loss(error: BaseException) -> bool:
    """Returns whether an error says that a collective lost another rank. Gloo's errors have no separate type."""
    return isinstance(error, _LOSSES) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def warm() -> None:
    """Runs the costly setup of a process's first group and first backward pass, before other ranks wait for it.

    It may be called at any point of a script, when the script reads its rank.
    """
    before = sys.excepthook
    dist.init_process_group(_backend(), store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()
    dist.destroy_process_group()
    sys.excepthook = before  # torch's says that this is rank 0
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, device="cpu", requires_grad=True)
        (weight * 2).sum().backward()


def _backend() -> str:
    return {None: "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}[accelerator_module()]


def connected_store(host: str, port: int) -> dist.TCPStore:
    """Connects to a store. The port is tried first, because torch would retry endlessly if the manager has just ended."""
    socket.create_connection((host, port), CONNECT_SECONDS).close()
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_SECONDS))


@dataclass
class _OwnGroup:
    """Process group that the script has made."""

    asked_for: tuple[tuple[Any, ...], dict[str, Any]]
    make: Callable[[], Any]
    early: bool
    """True if the group was made before there was a session."""
    made: Any = None
    """Result in this generation. It is no group on a rank that is not a member."""

    @property
    def of_mesh(self) -> bool:
        return str(self.asked_for[1].get("group_desc")).startswith("mesh_")

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that the script has named. Empty: it has named none, which means all."""
        args, _ = self.asked_for
        return frozenset(args[0] or ()) if args else frozenset()

    def again(self) -> Any:
        self.made = self.make()
        return self.made


Connected = TypeVar("Connected")


class Communicator:
    """Communicator of one rank. Made by the session. `cut` may be called from any thread, all else by the training loop."""

    def __init__(self, environment: RankEnvironment, gate: Gate) -> None:
        self._environment = environment
        self._gate = gate
        self._accelerator = accelerator_module()
        self.links = Links(environment.links, environment.own_state, self._accelerator)
        self._lock = threading.Lock()
        self._generation = 0
        self.parts = 1
        """Number of shares of each rank at full size."""
        self.team = Team.of((), environment.world_size)
        """Ranks of this generation."""
        self._cut = 0
        """Latest generation that was cut."""
        self.votes = False
        """True while this rank waits for others in a vote, or in the exchange before it."""
        self._connections: dict[int, sockets.Ends] = {}
        self._kept: list[socket.socket] = []
        """Connections that were cut. They are kept until all ranks have left them."""
        self._aborting: threading.Thread | None = None
        self._store: dist.TCPStore | None = None
        self._vote: Vote | None = None
        self._lines: Lines | None = None
        """`_vote` and `_lines` belong to this generation."""
        self._exchanges = 0
        self._asks = 0
        self._own_groups: list[_OwnGroup] = []
        """Groups of the script, in the order in which it made them."""
        self.in_session = False
        """True once the objects that are trained have been built."""
        self._handed_out: list[_OwnGroup] = []
        """Groups that the script has not asked for again yet."""
        self._excepthook = sys.excepthook
        self.places = Places()

    def watch(self) -> None:
        """Starts to record the connections of every group that is made, including the script's own groups."""
        self.places.watch()
        make = distributed_c10d._new_process_group_helper  # called for every group, also those of device meshes

        @wraps(make)
        def recorded(*args: Any, **keywords: Any) -> Any:
            with self._recording():
                return make(*args, **keywords)

        distributed_c10d._new_process_group_helper = recorded
        make_own = distributed_c10d._new_group_with_tag  # what `new_group` and device meshes call

        @wraps(make_own)
        def kept(*args: Any, **keywords: Any) -> Any:
            if again := next((group for group in self._handed_out if group.asked_for == (args, keywords)), None):
                self._handed_out.remove(again)
                return again.made
            make = partial(self._make_own, make_own, args, keywords)
            self._own_groups.append(_OwnGroup((args, keywords), make, early=not self.in_session))
            return self._own_groups[-1].again()

        distributed_c10d._new_group_with_tag = kept
        device_mesh.get_rank = self._as_in_job(device_mesh.get_rank, lambda: self._environment.rank)
        device_mesh.get_world_size = self._as_in_job(device_mesh.get_world_size, lambda: self.team.world_size)
        if (gloo := dist.Backend._plugins.get("GLOO")) is not None:
            dist.Backend._plugins["GLOO"] = gloo._replace(creator_fn=partial(self._connects, gloo.creator_fn))
        for way in ("send", "recv", "recv_anysource"):
            setattr(dist.ProcessGroup, way, _patient(getattr(dist.ProcessGroup, way)))
        os.register_at_fork(after_in_child=self._let_go)

    def divide(self, parts: int) -> None:
        """Sets the number of shares of each rank at full size. Called before the first generation is joined."""
        self.parts = parts
        self.team = Team.of((), self._environment.world_size, parts)

    def join(self, wish: Join) -> None:
        """Leaves the old generation, if there is one, and meets the other members in the manager's store.

        The script's own groups are made again with the same names, by which device meshes find them, and without ranks that are
        missing. A replacement's script makes them in the same order. Only groups that the script needs to build what it trains
        are made here.

        Raises:
            RuntimeError: the others could not be met, or the generation was cut meanwhile.
        """
        if self._aborting is not None:
            self._aborting.join()
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._lines is not None:
            self._lines.close()
        with self._lock:
            self._generation, self._vote, self._lines, self._exchanges = wish.generation, None, None, 0
            self._connections.clear()
            self._kept.clear()
            if self._is_cut:
                raise GivenUp(f"generation {wish.generation} was given up before it was joined")
        self._meet(wish.rebuild)
        self._make_again(early=True)
        if self._is_cut:
            raise GivenUp(f"generation {wish.generation} was given up while it was joined")

    def complete(self) -> None:
        """Makes the remaining groups of the script, which a replacement makes once it has its state. Raises as `join`."""
        distributed_c10d._get_default_store().set(_OWN_GROUPS, f"{len(self._own_groups)}")
        self._make_again(early=False)

    def refuse_other_groups(self) -> None:
        """Called by a replacement. Raises RuntimeError where it has not made the groups that the others have."""
        theirs, mine = int(distributed_c10d._get_default_store().get(_OWN_GROUPS)), len(self._own_groups)
        if theirs != mine:
            raise RuntimeError(
                f"the ranks that train have made {theirs} process groups of the script's own, and this replacement {mine}; "
                "all ranks make the same ones, in the same order, before the loop"
            )

    def own_groups(self, known: Collection[frozenset[int]] = ()) -> int:
        """Returns the number of groups that the script has made.

        Args:
            known: ranks of groups that do not count where a device mesh has made them.
        """
        return sum(not (group.of_mesh and group.ranks in known) for group in self._own_groups)

    @property
    def has_late_groups(self) -> bool:
        """Returns whether the script has made groups in its session."""
        return any(not group.early for group in self._own_groups)

    def _make_again(self, *, early: bool) -> None:
        for group in self._own_groups:
            if group.early is early:
                group.again()

    def _meet(self, rebuild: Rebuild) -> None:
        self.team = Team.of(rebuild.carriers, self._environment.world_size, self.parts)
        world, index = self.team.size, self.team.index(self._environment.rank)
        store = dist.PrefixStore(rebuild.store_prefix, self._store_at(rebuild.store_port, rebuild.timeout_seconds))
        with self._asking():
            mine = shared(self._environment, self._generation, store)
        self._gather(store, "all", world)
        vote = Vote(self._environment.rank, world, self._generation, mine if is_shared(store) else None)
        self.links.choose(backup=rebuild.backup_link)
        sys.excepthook = self._excepthook  # each group puts another one before it
        distributed_c10d._world.group_count = 0  # part of the keys in the store, and left behind by a group that failed
        dist.init_process_group(
            _backend(),
            store=store,
            rank=index,
            world_size=world,
            timeout=timedelta(seconds=JOIN_SECONDS + world / 10),
        )
        _set_timeout(dist.default_pg_timeout)
        apart = {*vote.distances, *({self._environment.ranks_per_pod} if world > self._environment.ranks_per_pod else ())}
        lines = Lines(index, world, apart)
        if apart:
            with self._asking():
                lines.listen(self.host(), store)
            self._unless_given_up(lines.connect)
        with self._lock:
            self._vote, self._lines = vote, lines

    def host(self) -> str:
        """Returns this rank's address in the default group."""
        with self._lock:
            mine = Counter(here[0] for here, _ in (self._connections or self._of_the_store()).values())
        return mine.most_common(1)[0][0]

    @contextmanager
    def handing_out(self) -> Iterator[None]:
        """Returns existing groups to the script inside the block, if it asks for one as it did before."""
        self._handed_out = list(self._own_groups)
        try:
            yield
        finally:
            self._handed_out = []

    def _gather(self, store: dist.Store, what: str, count: int) -> None:
        """Returns when `count` ranks have arrived. A rank that waits for a connection to a missing one could not be woken."""
        with self._asking():
            if store.add(f"come to {what}", 1) == count:
                store.set(what, "")
            store.wait([what])

    def _make_own(self, make: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        with self.places.ours():
            if args and args[0] is not None and not self.team.is_whole:
                there = set(self.team.members)
                if not (members := [self.team.index(rank) for rank in args[0] if rank in there]):
                    distributed_c10d._world.group_count += 1  # part of the names of later groups, by which meshes find them
                    return dist.GroupMember.NON_GROUP_MEMBER
                args = (members, *args[1:])
            return self._make_together(make, args, keywords)

    def _as_in_job(self, ask: Callable[..., int], in_job: Callable[[], int]) -> Callable[..., int]:
        """Wraps a question of device meshes about the default group, whose ranks they know by the numbers of the job."""

        @wraps(ask)
        def asked(group: Any = None) -> int:
            return ask(group) if group is not None or self.team.is_whole else in_job()

        return asked

    def _make_together(self, make: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not keywords.get("use_local_synchronization"):
            store: dist.Store = distributed_c10d._get_default_store()
            self._gather(store, f"own group {distributed_c10d._world.group_count}", dist.get_world_size())
        with self._asking():
            return make(*args, **keywords)

    def _connects(self, connect: Callable[..., Any], *args: Any) -> Any:
        """Connects a group, and stops when the generation is given up. Gloo would wait 40 seconds for a lost member."""
        return self._unless_given_up(lambda: connect(*args))

    def cut(self, generation: int) -> None:
        """Ends every collective of this generation that waits for another rank. Each raises an exception at once.

        A later generation is not affected, and an earlier one is over.
        """
        with self._lock:
            self._cut = max(self._cut, generation)
            if not self._is_cut:
                return
            self._kept += sockets.cut(self._connections)
            if self._vote is not None and self._lines is not None:
                self._vote.cut()
                self._lines.cut()
            if self._asks or self._accelerator is not None:  # NCCL meets there in the first collective of a group
                self._kept += sockets.cut(self._of_the_store())
                self._store = None
            if self._accelerator is not None:
                self._aborting = threading.Thread(
                    target=self._abort, args=(self._accelerator,), name="rekindle-aborts", daemon=True
                )
                self._aborting.start()

    @staticmethod
    def _abort(accelerator: str) -> None:
        """Aborts the groups of the accelerator, because its library goes on waiting when torch's connections end."""
        device = torch.device(accelerator)
        for group in list(distributed_c10d._world.pg_map):
            if device in group._device_types:
                group._get_backend(device).abort()

    def is_loss_now(self, error: BaseException) -> bool:
        """Returns whether an error says that a rank of this generation was lost. The script may have kept an error of an earlier
        generation, which has the same words; all connections of this one are whole then."""
        if not is_loss(error) or isinstance(error, _LOSSES):
            return is_loss(error)
        with self._lock:
            return self._is_cut or not self._connections or not sockets.are_whole(self._connections)

    def agree(self, word: int) -> None:
        """Returns when every rank has called it with this word, a number of up to 64 bits.

        Raises:
            Disagreement: every rank has called it, and some with another word; raised on all of them.
            RuntimeError: not every rank could be reached; some may have returned all the same.
        """
        if self._accelerator is not None:  # what the update needs has to be there, not only ordered
            getattr(torch, self._accelerator).current_stream().synchronize()
        assert self._vote is not None
        assert self._lines is not None
        self.votes = True
        try:
            self._vote.agree(word, self._lines)
        finally:
            self.votes = False

    def exchange(self, content: bytes) -> bytes:
        """Sends to the rank with this one's place in the next pod, and returns the content from the previous pod.

        Called by all ranks together, if there are several pods.

        Raises:
            RuntimeError: one of the two could not be reached.
        """
        assert self._lines is not None
        self._exchanges += 1
        self.votes = True
        try:
            return self._lines.exchange(self._environment.ranks_per_pod, content)
        finally:
            self.votes = False

    def counted(self) -> dict[str, int]:
        """Returns the number of collectives that this rank has begun in this generation, from any thread, by group.

        Votes and exchanges are counted together under the empty name.
        """
        try:
            groups: list[Any] = list(distributed_c10d._world.pg_map)
            found: dict[str, int] = {group.group_name: group._get_sequence_number_for_group() for group in groups}
        except RuntimeError:  # one is being made, or left
            return {}
        return {**found, "": self._exchanges + (0 if self._vote is None else self._vote.begun)}

    def leave(self, *, together: bool) -> None:
        """Leaves the job.

        Normally all ranks leave together, even if the script has destroyed the group itself, because a rank that has left
        takes part in no repair. The group is kept for code after the session, as in a script without one.

        Args:
            together: False: the connections are cut, so that ranks that wait for this one fail at once.
        """
        if not together:
            self.cut(self._generation)
            end_group()
        elif dist.is_initialized():
            dist.barrier()
            atexit.register(end_group)
        elif self._store is not None:
            with self._asking():
                meet_by_store(dist.PrefixStore(f"left {self._generation}", self._store), self.team.size)
        if self._lines is not None:
            self._lines.close()

    @property
    def _is_cut(self) -> bool:
        return self._cut >= self._generation > 0

    def _store_at(self, port: int, seconds: float) -> dist.TCPStore:
        """Returns a client for the store.

        It is kept for each manager's life, because a new one queries the name service twice.
        """
        if self._store is None or self._store.port != port:
            self._store = self._connected_to(port)
        self._store.set_timeout(timedelta(seconds=seconds))
        return self._store

    def _connected_to(self, port: int) -> dist.TCPStore:
        return self._unless_given_up(lambda: connected_store(self._environment.master_addr, port))

    def _unless_given_up(self, connect: Callable[[], Connected]) -> Connected:
        """Runs `connect` in a thread, because a thread that connects cannot be woken.

        It is abandoned if the generation is given up.

        Raises:
            RuntimeError: the generation was given up, or `connect` raised it.
        """
        connected: queue.SimpleQueue[Connected | Exception] = queue.SimpleQueue()

        def run() -> None:
            try:
                connected.put(connect())
            except Exception as error:  # noqa: BLE001  # the thread that waits for it raises it
                connected.put(error)

        threading.Thread(target=run, name="rekindle-connects", daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                if isinstance(found := connected.get(timeout=LOOK_SECONDS), Exception):
                    raise found
                return found
            if self._is_cut or self._gate.is_asked_to_join:
                raise GivenUp(f"generation {self._generation} was given up while it was joined")

    @contextmanager
    def _recording(self) -> Iterator[None]:
        before = sockets.connected()
        with self._asking():
            yield
        stores = {self._environment.master_port, self._store.port if self._store else 0}
        after = sockets.connected()
        with self._lock:
            self._connections |= {
                descriptor: ends
                for descriptor, ends in after.items()
                if before.get(descriptor) != ends and ends[1][1] not in stores
            }
            if self._is_cut:
                self._kept += sockets.cut(self._connections)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Marks the time in which members that make a group wait for each other in the store.

        Raises:
            RuntimeError: the generation was cut already, so nothing would end the wait.
        """
        with self._lock:
            if self._is_cut:
                raise GivenUp(f"generation {self._generation} was given up while it was joined")
            self._asks += 1
        try:
            yield
        finally:
            with self._lock:
                self._asks -= 1

    def _of_the_store(self) -> sockets.Connections:
        port = self._store.port if self._store else 0
        return {descriptor: ends for descriptor, ends in sockets.connected().items() if ends[1][1] == port}

    def _let_go(self) -> None:
        """Closes this rank's connections in a forked process, such as a data loader's worker.

        A neighbour notices the end of this rank by its sockets. It would not if another process held them open.
        """
        sockets.close(self._connections)
        if self._lines is not None:
            self._lines.close()


def _set_timeout(timeout: timedelta) -> None:
    """Sets the timeout of collectives of the default group. Torch has had a public function for this since 2.15."""
    set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
    set_timeout(timeout, None)


def _patient(communicate: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that sends or receives. Gloo would limit a message's time to that for connecting the ranks."""

    @wraps(communicate)
    def patient(group: dist.ProcessGroup, tensors: list[torch.Tensor], *args: Any) -> Any:
        work = communicate(group, tensors, *args)
        return _Work(work) if tensors[0].device.type == "cpu" else work

    return patient


class _Work:
    """Work of a message that may take as much time as a collective."""

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout: timedelta = dist.default_pg_timeout) -> bool:
        return self._work.wait(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
