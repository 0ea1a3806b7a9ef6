"""Connection of one rank to the manager, in a separate thread. Started by the adapter's session, one in each process.

The stream may break, and another manager may follow. The processor reconnects by itself, and sends Hello and its latest
message again. Training is not affected.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import grpc

from rekindle_training import logs, wire
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Check, Gate, Join, Switch, WriteLast
from rekindle_training.processor.stretches import Stretch, Stretches
from rekindle_training.snapshot_memory import Kind, SnapshotMemory
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import (
    Failed,
    Goodbye,
    Heartbeat,
    Held,
    Hello,
    Holding,
    Interval,
    Leave,
    Leaving,
    LinkSwitched,
    ManagerMessage,
    Paused,
    RankMessage,
    Saved,
    Standing,
    Stepped,
    StressTested,
)
from rekindle_wire.training_pb2 import Stretch as StretchMessage
from rekindle_wire.training_pb2_grpc import RanksStub

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 0.2
GOODBYE_SECONDS = 10.0
"""Seconds that an ending rank tries to send its goodbye. A manager that is away longer learns of the end from the cluster."""
LEAVE_SECONDS = 2.0
"""Seconds that a process has to reach a step boundary after the order to leave. After that it is ended immediately."""

REFUSED = 78
"""Exit code of a process whose protocol differs from its manager's: EX_CONFIG of sysexits.h."""

_Outbox = queue.SimpleQueue[RankMessage | None]


class _Links(Protocol):
    @property
    def on_backup(self) -> bool: ...


class _Communicator(Protocol):
    @property
    def links(self) -> _Links: ...

    def cut(self, generation: int) -> None:
        """Ends what the loop waits for in it."""

    def counted(self) -> dict[str, int]:
        """Number of collectives that were begun, by group name. Votes and exchanges are counted under the empty name."""

    @property
    def votes(self) -> bool:
        """True while this rank waits in a vote."""


class Processor:
    """Sends and receives messages for one rank.

    `gate` passes the manager's requests to the training loop. `communicator` runs the collectives of the rank.
    """

    def __init__(self, environment: RankEnvironment, gate: Gate, communicator: _Communicator) -> None:
        self._environment = environment
        self._gate = gate
        self._communicator = communicator
        self._outbox: _Outbox = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._statement: RankMessage | None = None
        self._leaving: Leaving | None = None
        """Message sent in this generation at the end of the loop. None: the loop has not ended."""
        self.stretches = Stretches()
        self.holding: Holding | None = None
        """What this rank trains. None: it was not compared with other ranks yet."""
        self._steps_lost = 0
        self._did: list[Interval] = []
        """Intervals of the work of this rank to join its generation, until its first step in it is reported."""
        self._joined_at = 0
        self._owes_step = True
        self._carriers: tuple[int, ...] = ()
        self.parts = 0
        """Number of shares of each rank at full size. 0: one, or the data are not divided into shares."""
        self._maintenance: str | None = None
        """Attempt of the maintenance of the latest pause. None: the pause was not for a maintenance."""
        self._ended = threading.Event()
        self._silence = wire.Silence(f"{environment.master_addr}:{environment.master_port}")
        self.generation = 0
        self._thread = threading.Thread(target=self._run, name="rekindle-processor", daemon=True)

    def start(self) -> None:
        logs.configure_rank(self._environment.rank)
        self._thread.start()

    def leave(self) -> None:
        """Reports the end of the loop before the last meeting with the other ranks, because some of them may not come."""
        with self._lock:
            gate = self._gate
            begun = sum(self._communicator.counted().values())
            self._leaving = Leaving(step=gate.completed, total=gate.total, collectives=begun)
            self._outbox.put(RankMessage(generation=self.generation, leaving=self._leaving))

    def end(self) -> None:
        """Sends the goodbye and waits until the manager has received it."""
        now = _sent(self.stretches.now)
        self._state(RankMessage(goodbye=Goodbye(step=self._gate.completed, total=self._gate.total, now=now)))
        self._ended.wait(GOODBYE_SECONDS)

    # What the training loop reports.

    def joined(self, generation: int, intervals: Iterable[Interval] = (), carriers: Iterable[int] = ()) -> None:
        """Notes that this rank is a member of a generation.

        Args:
            intervals: what it did for that, for traces.
            carriers: rank that carries each share there. Empty: all ranks are there.
        """
        self._did, self._joined_at = list(intervals), time.time_ns()
        with self._lock:
            self.generation, self._carriers = generation, tuple(carriers)
            self._statement = self._leaving = None
            self._owes_step = True

    def paused(self, step: int, own_state: bytes, replicas: Iterable[int]) -> None:
        self._state(RankMessage(paused=Paused(step=step, own_state=own_state, replicas=replicas)))

    def link_switched(self, problem: str, rebuild: bool) -> None:
        switched = LinkSwitched(problem=problem, rebuild=rebuild)
        self._outbox.put(RankMessage(generation=self.generation, link_switched=switched))

    def failed(self, reason: str, generation: int) -> None:
        """Reports that this rank could not join `generation`."""
        self._state(RankMessage(generation=generation, failed=Failed(reason=reason)))

    def standing(self, standing: Standing, generation: int) -> None:
        """Reports where this rank stands after `generation` has failed."""
        self._outbox.put(self._heartbeat())
        self._state(RankMessage(generation=generation, standing=standing))

    def lost_steps(self, count: int) -> None:
        self._steps_lost = count

    def stepped(self, step: int) -> None:
        """Called after every step. Reports the step only if the manager waits for one."""
        if self._owes_step:
            self._owes_step = False
            did, self._did = self._did, []
            first = [Interval(name="first step", began=self._joined_at, ended=time.time_ns())] if did else []
            now, before = _sent(self.stretches.now), _sent(self.stretches.before)
            stepped = Stepped(
                step=step,
                steps_lost=self._steps_lost,
                now=now,
                before=before,
                intervals=[*did, *first],
                holding=self.holding,
            )
            self._state(RankMessage(stepped=stepped))

    def tested(self, tested: StressTested) -> None:
        """Sends the result of a check. The latest statement stays valid: a manager that missed this result asks again."""
        self._outbox.put(RankMessage(generation=self.generation, stress_tested=tested))

    def saved(self, saved: Saved) -> None:
        """Sends the result of a last checkpoint. A manager that missed it asks again."""
        self._outbox.put(RankMessage(generation=self.generation, saved=saved))

    def _state(self, message: RankMessage) -> None:
        """Sends a statement. It holds until the next one and is repeated at the start of each new stream."""
        with self._lock:
            message.generation = message.generation or self.generation
            self._statement = message
            self._outbox.put(message)

    # The conversation.

    def _run(self) -> None:
        address = f"{self._environment.master_addr}:{self._environment.master_port}"
        with grpc.insecure_channel(address, options=list(wire.CLIENT)) as channel:
            stub = RanksStub(channel)
            while not self._ended.is_set():
                self._silence.begin()
                try:
                    self._converse(stub)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                        log.error("process refused by the manager", extra={"reason": error.details()})  # noqa: TRY400
                        os._exit(REFUSED)
                    log.info("manager lost by the rank, reconnecting", extra={"manager": address, "reason": error.code().name})
                self._ended.wait(RETRY_SECONDS)

    def _converse(self, stub: RanksStub) -> None:
        outbox = self._introduce()
        try:
            for message in stub.Join(self._speak(outbox), wait_for_ready=True):
                self._obey(message)
        finally:
            outbox.put(None)
        if self._statement is not None and self._statement.HasField("goodbye"):
            self._ended.set()

    def _introduce(self) -> _Outbox:
        with self._lock:
            outbox: _Outbox = queue.SimpleQueue()
            paused = self._statement is not None and self._statement.HasField("paused")
            outbox.put(RankMessage(generation=self.generation, hello=self._hello(paused)))
            if self._statement is not None:
                outbox.put(self._statement)
            if self._leaving is not None:
                outbox.put(RankMessage(generation=self.generation, leaving=self._leaving))
            if not paused:
                self._owes_step = True
            self._outbox = outbox
            return outbox

    def _hello(self, paused: bool) -> Hello:
        environment = self._environment
        step = self._gate.completed
        return Hello(
            rank=environment.rank,
            role=environment.role,
            process=environment.process,
            step=step,
            paused=paused,
            protocol=PROTOCOL,
            maintenance=self._maintenance if paused else None,
            backup_link=self._communicator.links.on_backup,
            world_size=environment.world_size,
            ranks_per_pod=environment.ranks_per_pod,
            carriers=self._carriers,
            snapshots=_snapshots(environment),
            parts=self.parts,
        )

    def _speak(self, outbox: _Outbox) -> Iterator[RankMessage]:
        while True:
            try:
                message = outbox.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                message = self._heartbeat()
            if message is None:
                return
            yield message
            self._silence.end()
            if message.HasField("goodbye"):
                return

    def _heartbeat(self) -> RankMessage:
        gate, communicator = self._gate, self._communicator
        votes = communicator.votes  # first: a rank that begins a vote meanwhile has begun one collective more, and waits in none
        counted = communicator.counted()
        collectives = sum(counted.values())
        counted.pop("", None)
        beat = Heartbeat(
            step=gate.completed,
            collectives=collectives,
            begun=gate.begun,
            votes=votes,
            groups=counted,
            now=_sent(self.stretches.now),
        )
        return RankMessage(generation=self.generation, heartbeat=beat)

    def _obey(self, message: ManagerMessage) -> None:
        if message.generation < self.generation:
            log.warning("message of an earlier generation ignored", extra={"generation": message.generation})
            return
        match message.WhichOneof("kind"):
            case "stand":
                self._gate.stand(message.generation)
                self._communicator.cut(message.generation)
            case "rebuild":
                self._gate.join(Join(message.generation, message.rebuild))
            case "leave":
                self._leave(message.leave)
            case _:
                self._obey_at_boundary(message)

    def _obey_at_boundary(self, message: ManagerMessage) -> None:
        match message.WhichOneof("kind"):
            case "hold":
                step, total = self._gate.hold()
                self._outbox.put(RankMessage(generation=self.generation, held=Held(step=step, total=total)))
            case "pause_at":
                order = message.pause_at
                self._maintenance = order.maintenance if order.HasField("maintenance") else None
                self._gate.pause_at(order.step)
            case "switch_link":
                self._gate.switch(Switch(message.switch_link.backup))
            case "resume":
                self._resume()
            case "save":
                self._gate.write_last(WriteLast(message.save))
            case "stress_test":
                self._gate.check(Check(message.stress_test))

    def _resume(self) -> None:
        with self._lock:
            self._statement = None
            self._owes_step = True
        self._gate.open()

    def _leave(self, leave: Leave) -> None:
        log.info("process dismissed by the manager", extra={"reason": leave.reason})
        if leave.exit_code:
            os._exit(leave.exit_code)
        self._gate.leave(leave)
        timer = threading.Timer(LEAVE_SECONDS, _end_here)
        timer.daemon = True
        timer.start()


def _sent(stretch: Stretch | None) -> StretchMessage | None:
    return stretch.sent() if stretch else None


def _snapshots(environment: RankEnvironment) -> list[int]:
    """Returns the steps of the snapshots that this rank has in its pod's memory."""
    if environment.snapshots is None or environment.snapshot_every is None:
        return []
    copies = SnapshotMemory(environment.snapshots).copies(Kind.OWN)
    return [copy.step for copy in copies if copy.rank == environment.rank]


def _end_here() -> None:
    """Ends the process of a loop that did not reach a boundary in time.

    It may be waiting in a collective for ranks that have left.
    """
    with contextlib.suppress(OSError):
        os.fsync(2)
    os._exit(0)
