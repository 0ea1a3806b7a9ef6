"""Training sides of many jobs in one process, for `benchmarks.outages`: real managers over ranks that train nothing, and MindIO.

What stands between a manager and the gateway is the real one, with its patience, its repetitions and its help for itself. Ranks
and launchers are played: they answer at once, and nothing passes between them and their manager but messages in memory.
"""

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load_control import PODS, RANKS_PER_POD
from rekindle.model.base import Value
from rekindle_training import names
from rekindle_training.injection import Injection
from rekindle_training.manager.coordinator import Coordinator
from rekindle_training.manager.gateway import Gateway
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.orders import Orders
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.reports import Reports
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import (
    Held,
    Hello,
    Kept,
    ManagerMessage,
    Paused,
    PodOrder,
    PodState,
    ProcessState,
    RankMessage,
    Standing,
    Stepped,
)
from tests.fakes.fault_dialogue import TRAINS
from tests.fakes.peer import MindioPeer, Script
from tests.support.elsewhere import Elsewhere

RANKS = PODS * RANKS_PER_POD
ORDER_SECONDS, REBUILD_SECONDS = 60.0, 60.0
"""Settings of a manager without any in its environment."""
STARTS = 0.3
"""Seconds in which a process starts, at most."""
STEPS = 1_000_000
"""Number of steps of training: more than a run can complete."""
KILLED = -9
MEMORY, GONE = "0", "1"

_numbers = itertools.count(1)


class ToldPod(Value):
    """A pod as the cluster tells it."""

    name: str
    uid: str
    node: str
    rank: int
    backup: bool


class Rank:
    """Process, as its manager sees it."""

    def __init__(self, number: int, identity: str, role: str, membership: Membership) -> None:
        self.number, self.identity = number, identity
        self.ended: int | None = None
        self._membership = membership
        self._generation, self._step = 0, 0
        hello = Hello(rank=number, role=role, process=identity, protocol=PROTOCOL, world_size=RANKS, ranks_per_pod=RANKS_PER_POD)
        self._process, self._outbox = membership.enroll(hello, 0)
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while self.ended is None and (message := await self._outbox.get()) is not None:
            if message.WhichOneof("kind") == "leave":
                self.end(message.leave.exit_code)
            elif answer := self._answer(message):
                self._say(answer)

    def end(self, code: int) -> None:
        if self.ended is None:
            self.ended = code
            self._membership.depart(self._process, self._outbox)
            self._outbox.put_nowait(None)

    def fail(self) -> None:
        """A step fails for want of memory."""
        self._say(RankMessage(standing=self._standing("out of memory", Standing.MEMORY)))

    def _say(self, message: RankMessage) -> None:
        message.generation = self._generation
        self._membership.hear(self._process, message)

    def _answer(self, message: ManagerMessage) -> RankMessage | None:
        match message.WhichOneof("kind"):
            case "rebuild":
                self._generation, self._step = message.generation, message.rebuild.step
                return RankMessage(paused=self._paused()) if message.rebuild.stands else self._completes_a_step()
            case "hold":
                return RankMessage(held=Held(step=self._step, total=STEPS))
            case "pause_at":
                self._step = message.pause_at.step
                return RankMessage(paused=self._paused())
            case "resume":
                return self._completes_a_step()
            case "stand":
                return RankMessage(standing=self._standing("", Standing.OTHER))
            case _:
                return None

    def _completes_a_step(self) -> RankMessage:
        self._step += 1
        return RankMessage(stepped=Stepped(step=self._step))

    def _paused(self) -> Paused:
        return Paused(step=self._step, own_state=b"own")

    def _standing(self, reason: str, fault: Standing.Fault.ValueType) -> Standing:
        kept = [Kept(rank=rank, step=self._step, own_state=b"own") for rank in range(RANKS) if rank != self.number]
        return Standing(step=self._step, reason=reason, fault=fault, kept=kept)


class Launcher:
    """Pod that starts its processes, reports which have ended, and does what the manager says."""

    def __init__(self, pod: ToldPod, membership: Membership, pods: Pods) -> None:
        self.pod = pod
        self.failed = ""
        """Why the pod ended by itself."""
        self._membership, self._pods = membership, pods
        self._name = f"{pod.name}-{next(_numbers)}"
        self.ranks: dict[int, Rank] = {}
        self._followed: set[str] = set()
        """Processes that others take the place of."""
        self._stream = pods.attach()
        self._tasks = [asyncio.create_task(self._obey())]
        for local in range(RANKS_PER_POD):
            self._start_soon(pod.rank * RANKS_PER_POD + local)

    def kill(self, number: int) -> None:
        self.ranks[number].end(KILLED)
        self._tell()

    def end(self) -> None:
        """The pod is deleted."""
        for task in self._tasks:
            task.cancel()
        for rank in self.ranks.values():
            rank.end(KILLED)
        self._tell()
        self._pods.detach(self._stream)

    def _start_soon(self, number: int) -> None:
        self._tasks.append(asyncio.create_task(self._start(number)))

    async def _start(self, number: int) -> None:
        await asyncio.sleep(random.uniform(0, STARTS))
        role = names.BACKUP if self.pod.backup else names.WORKER
        self.ranks[number] = Rank(number, f"{self._name}/{next(_numbers)}", role, self._membership)
        self._tell()

    def _tell(self) -> None:
        processes = [ProcessState(rank=rank.number, process=rank.identity, ended=rank.ended) for rank in self.ranks.values()]
        state = PodState(protocol=PROTOCOL, processes=processes, pod=self._name, pod_uid=self.pod.uid)
        self._pods.hear(self._stream, state)

    async def _obey(self) -> None:
        while (order := await self._stream.outbox.get()) is not None:
            match order.WhichOneof("kind"):
                case "replace":
                    self._replace(order)
                case "end":
                    self._kill_named(order.end.process)
                case "restart" if any(rank.ended for rank in self.ranks.values()):
                    self.failed = order.restart.reason

    def _replace(self, order: PodOrder) -> None:
        """Once, however often it is ordered."""
        for rank in list(self.ranks.values()):
            if rank.identity == order.replace.process and rank.ended is not None and rank.identity not in self._followed:
                self._followed.add(rank.identity)
                self._start_soon(rank.number)

    def _kill_named(self, identity: str) -> None:
        for rank in self.ranks.values():
            if rank.identity == identity:
                self.kill(rank.number)


class OurSide:
    """Our own: one manager, and the pods that the cluster tells of."""

    def __init__(self, address: str, job_id: str, store: Store) -> None:
        self.pods: dict[str, ToldPod] = {}
        """Living processes, by their UIDs."""
        self._address, self._job_id, self._store = address, job_id, store
        self._launchers: dict[str, Launcher] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._membership: Membership | None = None

    @property
    def trains(self) -> bool:
        membership = self._membership
        if membership is None or not membership.training or membership.vacant or membership.standing is not None:
            return False
        return not any(member.paused for member in membership.members.values())

    @property
    def generation(self) -> int:
        return self._membership.generation if self._membership else 0

    @property
    def has_left(self) -> str:
        """Why its pods ended by themselves; empty: they did not."""
        return next((launcher.failed for launcher in self._launchers.values() if launcher.failed), "")

    async def see(self, pods: Sequence[ToldPod]) -> None:
        """Processes follow their pods. All that are new have a new manager."""
        self.pods = {pod.uid: pod for pod in pods}
        for uid in self._launchers.keys() - self.pods.keys():
            self._launchers.pop(uid).end()
        if not self._launchers and self._tasks:
            await self.stop()
        for uid, pod in self.pods.items():
            if uid not in self._launchers:
                self._begin(pod)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for launcher in self._launchers.values():
            launcher.end()
        self._launchers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._membership = None

    def strike(self, kind: str, rank: int) -> None:
        """A process ends, or its step fails for want of memory."""
        launcher = next(one for uid, one in self._launchers.items() if rank in one.ranks and not self.pods[uid].backup)
        launcher.kill(rank) if kind == GONE else launcher.ranks[rank].fail()

    def _begin(self, pod: ToldPod) -> None:
        if self._membership is None:
            self._manage()
        assert self._membership is not None
        self._launchers[pod.uid] = Launcher(pod, self._membership, self._of_launchers)

    def _manage(self) -> None:
        self._membership, self._of_launchers, reports = Membership(RANKS, RANKS_PER_POD), Pods(decides=True), Reports()
        store: asyncio.Future[Store] = asyncio.get_running_loop().create_future()
        store.set_result(self._store)
        means = Means(
            membership=self._membership,
            pods=self._of_launchers,
            alone=False,
            ranks_per_pod=RANKS_PER_POD,
            store=store,
            reports=reports,
            injection=Injection(),
            rebuild_timeout=REBUILD_SECONDS,
            order_timeout=ORDER_SECONDS,
            decides_without_orders=True,
            stall_seconds=0,
        )
        coordinator = Coordinator(means)
        identity = Identity(self._job_id, Path("/nonexistent"))
        gateway = Gateway(self._address, identity, reports, Orders(coordinator).obey, {})
        self._tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(gateway.run())]


class StrictMindio(MindioPeer):
    """Waits after the report of a fault, as after every other report."""

    async def report_fault(self, *ranks: int, kind: str = GONE) -> int:
        code = await super().report_fault(*ranks, kind=kind)
        if self.state == TRAINS and self.broken:
            self._wait("the report of a fault")
        return code


class MindioSide:
    """TaskD with MindIO: a report is not repeated, and behind each one an order has to come within 30 s."""

    generation = 0

    def __init__(self, address: str, job_id: str) -> None:
        self.pods: dict[str, ToldPod] = {}
        self._address, self._job_id = address, job_id
        self._peer: StrictMindio | None = None
        self._elsewhere: Elsewhere | None = None
        self._work: list[asyncio.Task[int]] = []

    @property
    def trains(self) -> bool:
        return self._peer is not None and self._peer.state == TRAINS and not self._peer.broken and not self._peer.exited

    @property
    def has_left(self) -> str:
        return self._peer.exited if self._peer else ""

    async def see(self, pods: Sequence[ToldPod]) -> None:
        """A manager lives as long as the pods, and the next one is another client."""
        seen = {pod.uid: pod for pod in pods}
        if not seen.keys() & self.pods.keys() and self._peer:
            await self.stop()
        self.pods = seen
        if self._peer is None and len(seen) == PODS:
            await self._begin()

    async def _begin(self) -> None:
        address = self._address
        if self._elsewhere:
            address = await self._elsewhere.start()
        self._peer = StrictMindio(address, self._job_id, Script(), asyncio.get_running_loop().create_future)
        self._peer.start()

    async def stop(self) -> None:
        peer, self._peer = self._peer, None
        for telling in self._work:
            telling.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self._work.clear()
        if peer:
            await peer.__aexit__()
        if self._elsewhere:
            await self._elsewhere.stop()
        self._elsewhere = None if self._elsewhere else Elsewhere(self._address)

    def strike(self, kind: str, rank: int) -> None:
        assert self._peer
        self._work.append(asyncio.create_task(self._peer.report_fault(rank, kind=kind)))
