"""The process group of a rank: every connection of it can be cut from another thread, and no other process holds one open."""

import os
import signal
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from rekindle_training.adapter import communicator as communicator_module
from rekindle_training.adapter.communicator import Communicator, warm
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate, Join
from rekindle_wire.training_pb2 import Rebuild
from tests.training.loaded import CONTEXT

LIMIT = 60
WORLD = 3


class Ranks:
    """Processes of one group: rank 0 does something, and the others something else; as a rule they wait in a collective."""

    def __init__(self, does: Any, others: Any = None, join_seconds: float = 8.0) -> None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.store = store
        self.pipes, processes = [], []
        for rank in range(WORLD):
            here, there = CONTEXT.Pipe()
            self.pipes.append(here)
            processes.append(
                CONTEXT.Process(
                    target=_rank,
                    args=(rank, store.port, does if rank == 0 else others or _waits, join_seconds, there),
                    daemon=True,
                )
            )
        self.processes = processes
        for process in processes:
            process.start()

    def says(self, rank: int) -> Any:
        assert self.pipes[rank].poll(LIMIT), f"rank {rank} says nothing"
        return self.pipes[rank].recv()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _rank(rank: int, port: int, does: Any, join_seconds: float, says: Connection) -> None:
    communicator_module.JOIN_SECONDS = join_seconds
    environment = RankEnvironment.read(
        {"REKINDLE_PROCESS": "p", "RANK": f"{rank}", "WORLD_SIZE": f"{WORLD}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    )
    communicator = Communicator(environment, Gate())
    warm()
    communicator.watch()
    communicator.join(Join(1, Rebuild(store_port=port, store_prefix="one", world_size=WORLD, timeout_seconds=LIMIT)))
    dist.new_group(list(range(WORLD)))
    dist.barrier()
    says.send("is there")
    threading.Thread(target=_obey, args=(communicator, says), daemon=True).start()
    does(communicator, says)
    signal.pause()


def _obey(communicator: Communicator, told: Connection) -> None:
    """Cuts the generations that it receives, as the thread that receives the manager's messages does."""
    while True:
        communicator.cut(told.recv())


def _waits(communicator: Communicator, says: Connection) -> None:
    """Waits in a collective of the group that the script has made."""
    try:
        dist.all_reduce(torch.zeros(1), group=communicator._own_groups[0].made)
    except RuntimeError:
        says.send("was cut off")


def _lets_wait(_communicator: Communicator, _says: Connection) -> None:
    """Takes part in no collective."""


def _forks_and_dies(_: Communicator, says: Connection) -> None:
    if os.fork() == 0:
        says.send(f"worker {os.getpid()}")
        signal.pause()
    signal.pause()


def test_a_cut_ends_every_collective_that_waits() -> None:
    """A cut also ends collectives in a group that the script has made, and those without the rank that is waited for. A cut of an
    earlier generation does nothing."""
    ranks = Ranks(_lets_wait)
    try:
        assert [ranks.says(rank) for rank in range(WORLD)] == ["is there"] * WORLD
        for rank in (1, 2):
            ranks.pipes[rank].send(0)
            assert not ranks.pipes[rank].poll(0.2)
            ranks.pipes[rank].send(1)
            assert ranks.says(rank) == "was cut off"
    finally:
        ranks.end()


def test_a_killed_rank_is_noticed_although_a_worker_of_it_lives() -> None:
    """A data loader's worker is a fork of its rank, and would hold its connections open for seconds after its end."""
    ranks = Ranks(_forks_and_dies)
    worker = 0
    try:
        assert [ranks.says(rank) for rank in range(WORLD)] == ["is there"] * WORLD
        worker = int(ranks.says(0).removeprefix("worker "))
        ranks.processes[0].kill()
        ranks.processes[0].join()
        assert [ranks.says(rank) for rank in (1, 2)] == ["was cut off"] * 2
        os.kill(worker, 0)
    finally:
        if worker:
            os.kill(worker, signal.SIGKILL)
        ranks.end()


def _sends_late(_: Communicator, says: Connection) -> None:
    """Sends a message only when there would be no more time to connect."""
    threading.Event().wait(_SOON * 1.5)
    dist.send(torch.ones(1), 1)
    says.send("sent")


_SOON = 3.0


def _receives(_: Communicator, says: Connection) -> None:
    received = torch.zeros(1)
    dist.recv(received, 0)
    says.send(f"received {received.item():g}")


def test_a_message_between_two_ranks_may_take_longer_than_they_had_to_connect() -> None:
    """A message may take its time like any collective, and so may its sender."""
    ranks = Ranks(_sends_late, _receives, join_seconds=_SOON)
    try:
        assert [ranks.says(rank) for rank in range(WORLD)] == ["is there"] * WORLD
        assert ranks.says(1) == "received 1"
    finally:
        ranks.end()


def _keeps_an_error(communicator: Communicator, says: Connection) -> None:
    """Waits in a group of the script's own when the generation ends, in a thread such as one that saves a checkpoint."""
    kept: list[BaseException] = []

    def waits() -> None:
        try:
            dist.all_reduce(torch.zeros(1), group=communicator._own_groups[0].made)
        except RuntimeError as error:
            kept.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    _begins_anew(communicator)
    thread.join(LIMIT)
    says.send([communicator_module.is_loss(kept[0]), communicator.is_loss_now(kept[0])])
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        says.send([communicator.is_loss_now(error), communicator.is_loss_now(ValueError("/gloo/"))])


def _begins_anew(communicator: Communicator, *_: object) -> None:
    assert communicator._store is not None
    communicator.cut(1)
    rebuild = Rebuild(store_port=communicator._store.port, store_prefix="two", world_size=WORLD, timeout_seconds=LIMIT)
    communicator.join(Join(2, rebuild))
    dist.barrier()


def test_an_error_of_an_earlier_generation_is_no_loss_in_this_one() -> None:
    """An old error is not taken for a new loss, although Gloo's message is the same. A rank that is lost now breaks connections
    of now."""
    ranks = Ranks(_keeps_an_error, _begins_anew)
    try:
        assert [ranks.says(rank) for rank in range(WORLD)] == ["is there"] * WORLD
        assert ranks.says(0) == [True, False]
        ranks.processes[1].kill()
        assert ranks.says(0) == [True, False]
    finally:
        ranks.end()


ENVIRONMENT = {"REKINDLE_PROCESS": "p", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_generation_that_was_cut_before_it_was_there_is_not_joined() -> None:
    """The manager may give it up while a rank is still on its way."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    communicator = Communicator(RankEnvironment.read(ENVIRONMENT), Gate())
    communicator.cut(2)
    with pytest.raises(RuntimeError, match="was given up"):
        communicator.join(Join(2, Rebuild(store_port=store.port, store_prefix="two", world_size=1, timeout_seconds=LIMIT)))


def test_a_store_that_ends_while_it_is_reached_keeps_nobody_from_the_next_one() -> None:
    """A manager that died is followed by another one, which invites to a store of its own."""
    gate = Gate()
    communicator = Communicator(RankEnvironment.read(ENVIRONMENT), gate)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rebuild = Rebuild(store_port=silent.getsockname()[1], store_prefix="two", world_size=1, timeout_seconds=LIMIT)
        gate.join(Join(2, rebuild))
        with pytest.raises(RuntimeError, match="given up while it was joined"):
            communicator.join(Join(2, rebuild))


def test_a_generation_that_is_cut_while_its_store_is_reached_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut generation is not waited for, since another rank may have been lost, so that no other rank comes."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    communicator = Communicator(RankEnvironment.read(ENVIRONMENT), Gate())
    reach = communicator._connected_to

    def reached(port: int) -> dist.TCPStore:
        connected = reach(port)
        communicator.cut(2)
        return connected

    monkeypatch.setattr(communicator, "_connected_to", reached)
    with pytest.raises(RuntimeError, match="was given up while it was joined"):
        communicator.join(Join(2, Rebuild(store_port=store.port, store_prefix="two", world_size=2, timeout_seconds=5)))


def test_who_connects_to_a_member_that_is_lost_is_not_waited_for() -> None:
    """The rank does not wait for the 40 seconds of Gloo."""
    communicator = Communicator(RankEnvironment.read(ENVIRONMENT), Gate())
    communicator._generation = 2
    over = threading.Event()

    def connect() -> None:
        communicator.cut(2)
        over.wait(LIMIT)

    with pytest.raises(RuntimeError, match="was given up while it was joined"):
        communicator._connects(connect)
    over.set()


class _Accelerators(Backend):
    """A backend in place of NCCL or HCCL, which need their devices. A collective ends when it is aborted."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.aborted = threading.Event()

    def getBackendName(self) -> str:  # noqa: N802  # torch's
        return "devices"

    def abort(self) -> None:
        self.aborted.set()


def _waits_on_an_accelerator(says: Connection) -> None:
    made: list[_Accelerators] = []

    def make(_store: dist.Store, rank: int, size: int, _timeout: Any) -> _Accelerators:
        made.append(_Accelerators(rank, size))
        return made[-1]

    dist.Backend.register_backend("devices", make, devices=["cuda"])
    communicator_module.accelerator_module = lambda: "cuda"
    communicator_module._backend = lambda: "cpu:gloo,cuda:devices"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    communicator = Communicator(RankEnvironment.read(ENVIRONMENT), Gate())
    for generation in (1, 2):
        rebuild = Rebuild(store_port=store.port, store_prefix=f"{generation}", world_size=1, timeout_seconds=LIMIT)
        communicator.join(Join(generation, rebuild))
    dist.new_group([0])
    communicator.cut(1)
    says.send([backend.aborted.is_set() for backend in made])
    communicator.cut(2)
    communicator._aborting.join(LIMIT)  # type: ignore[union-attr]
    says.send([backend.aborted.is_set() for backend in made])
    communicator.join(Join(3, Rebuild(store_port=store.port, store_prefix="3", world_size=1, timeout_seconds=10 * LIMIT)))
    threading.Timer(0.1, communicator.cut, [3]).start()
    try:
        dist.distributed_c10d._get_default_store().get("the id of a communicator that nobody makes")
    except RuntimeError:
        says.send("ended")


def test_what_waits_on_an_accelerator_is_aborted_in_each_group_of_the_generation() -> None:
    """Collectives on an accelerator are aborted, since its library has connections of its own that torch does not show."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_waits_on_an_accelerator, args=(there,), daemon=True)
    process.start()
    assert here.poll(LIMIT)
    assert here.recv() == [False, False, False]
    assert here.poll(LIMIT)
    assert here.recv() == [False, True, True]
    assert here.poll(LIMIT)
    assert here.recv() == "ended", "a library that meets in the store waits there in vain"
    process.kill()
