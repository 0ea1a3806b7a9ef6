"""Pods of the job, as their launchers report them: the process of each rank, and which processes have ended.

Orders are sent back to the launchers. A launcher reports its whole state, not events: after each change, each second and on
each new stream. An order names the state to which it is the answer. So no report or order is lost or carried out twice.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rekindle_wire.training_pb2 import Again, Decides, End, PodOrder, PodState, ProcessState, Replace, Restart, Take, Trains

log = logging.getLogger(__name__)

Outbox = asyncio.Queue[PodOrder | None]


@dataclass(eq=False)
class _Pod:
    """Pod whose launcher speaks over one stream."""

    outbox: Outbox
    state: PodState = field(default_factory=PodState)


class Pods:
    """Pods of the job whose launchers are connected."""

    def __init__(self, *, decides: bool = False) -> None:
        """Args:
        decides: True if launchers are ordered to wait when a rank has ended. Without a control plane they do so anyway.
        """
        self._decides = decides
        self._untold: tuple[str, bool] | None = None
        """Reason of a restart that could not be sent because no launcher was connected, and whether it is futile."""
        self._trains: PodOrder | None = None
        """Order that launchers get once training has completed a step. None: no step is completed yet."""
        self._released: dict[str, PodOrder] = {}
        """Pods for which no decision will follow, by name, with the order that releases them."""
        self._again: dict[str, PodOrder] = {}
        """Pods whose processes are to start again, by name, with the order."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each new state of a pod."""
        self.over = False
        self._pods: list[_Pod] = []
        self._orders: dict[str, PodOrder] = {}
        """Orders that are to be carried out, by the process to which they respond. A restart has the empty name."""
        self._named: dict[str, int] = {}
        """Pod ranks that standbys are to take, by the uids of their pods."""
        self._told: set[str] = set()
        """Launchers of standbys that were ordered to take a rank.

        They stay here if they fall silent or another standby was assigned.
        """

    # What the service brings.

    def attach(self) -> _Pod:
        pod = _Pod(asyncio.Queue())
        self._pods.append(pod)
        if self._decides:
            pod.outbox.put_nowait(PodOrder(decides=Decides()))
        for order in [*self._orders.values(), *([self._trains] if self._trains else [])]:
            pod.outbox.put_nowait(order)
        return pod

    def hear(self, pod: _Pod, state: PodState) -> None:
        if state == pod.state:
            return
        if (released := self._released.get(state.pod)) is not None and not pod.state.pod:
            pod.outbox.put_nowait(released)  # on a stream that it did not come by
        if (again := self._again.get(state.pod)) is not None and not pod.state.pod and state.again != again.again.attempt:
            pod.outbox.put_nowait(again)
        was_loaded, pod.state = pod.state.standby.loaded, state
        self._pods = [known for known in self._pods if known is pod or known.state.pod != state.pod]  # an earlier stream's
        if state.standby.loaded and not was_loaded:
            loaded = sum(known.state.standby.loaded for known in self._pods)
            log.info("standby registered", extra={"uid": state.pod_uid, "standbys": loaded})
        self._give_rank(pod)
        if self._untold is not None:
            reason, futile = self._untold
            self.restart(reason, futile=futile)
        self.on_change()

    def detach(self, pod: _Pod) -> None:
        self._pods = [known for known in self._pods if known is not pod]

    def end_all(self) -> None:
        """Closes all streams, because the manager ends."""
        self.over = True
        for pod in self._pods:
            pod.outbox.put_nowait(None)

    # What is known.

    @property
    def succeeds(self) -> bool:
        """Returns whether a launcher has started a manager again. Then only the ranks themselves may know that they train."""
        return any(pod.state.succeeds for pod in self._pods)

    @property
    def restarts(self) -> int:
        """Number of times that all ranks have begun again together."""
        return max((pod.state.restarts for pod in self._pods), default=0)

    @property
    def states(self) -> Iterable[PodState]:
        """Latest states of all connected pods."""
        return (pod.state for pod in self._pods)

    @property
    def processes(self) -> Iterable[ProcessState]:
        """States of the latest process of each rank."""
        return (process for pod in self._pods for process in pod.state.processes)

    @property
    def ended(self) -> dict[int, ProcessState]:
        """Processes that have ended and have no successor, by rank."""
        return {process.rank: process for process in self.processes if process.HasField("ended")}

    def vouches_for(self, identity: str) -> bool:
        """Returns whether the process lives, according to its launcher."""
        return any(process.process == identity and not process.HasField("ended") for process in self.processes)

    # What is to be done.

    def replace(self, process: ProcessState) -> None:
        """Orders another process to take the rank of this one."""
        self._order(process.process, PodOrder(replace=Replace(process=process.process)))

    def kill(self, identity: str, reason: str) -> None:
        """Orders the process to be killed."""
        self._order(identity, PodOrder(end=End(process=identity, reason=reason)))

    def restart(self, reason: str, *, futile: bool) -> None:
        """Orders all ranks to begin again, as long as restarts are left. Otherwise the job ends.

        Args:
            reason: why training cannot go on.
            futile: True if the job ends at once, because a restart would fail in the same way.
        """
        self._untold = None if self._pods else (reason, futile)
        for pod in self._pods:
            self._order("", PodOrder(restart=Restart(restarts=pod.state.restarts, reason=reason, futile=futile)))

    def begin_again(self, launchers: Collection[str], attempt: str, reason: str) -> None:
        """Orders these pods to start all their processes again, unless they have done so in this attempt."""
        order = PodOrder(again=Again(attempt=attempt, reason=reason))
        self._again = dict.fromkeys(launchers, order)
        for pod in self._pods:
            if pod.state.pod in launchers and pod.state.again != attempt:
                log.info("pod restart ordered", extra={"pod": pod.state.pod, "reason": reason})
                pod.outbox.put_nowait(order)

    def train(self) -> None:
        """Notifies the launchers that a step was completed since all ranks began together."""
        self._trains = PodOrder(trains=Trains(restarts=self.restarts))
        for pod in self._pods:
            pod.outbox.put_nowait(self._trains)

    def keep(self) -> None:
        """Orders the pods to go on waiting, because it is not decided yet what follows the end of a process."""
        for pod in self._pods:
            if pod.state.pod not in self._released:
                pod.outbox.put_nowait(PodOrder(decides=Decides()))

    def release(self, reason: str, rank_process: str = "") -> None:
        """Releases pods from waiting: each ends if one of its ranks has failed, or as soon as one fails.

        Args:
            reason: why the pods are released.
            rank_process: a process of the pod that is released. Empty: all connected pods are released.
        """
        for pod in self._pods:
            if rank_process in ("", *(process.process for process in pod.state.processes)):
                log.info("pod released", extra={"pod": pod.state.pod, "reason": reason})
                order = PodOrder(restart=Restart(restarts=pod.state.restarts, reason=reason))
                self._released[pod.state.pod] = order
                pod.outbox.put_nowait(order)

    # Standbys.

    def name(self, standbys: Mapping[str, int]) -> None:
        """Assigns pod ranks to standbys, which take them immediately, or as soon as they report.

        Earlier assignments of these ranks end.

        Args:
            standbys: pod ranks by the uids of the pods.
        """
        others = {uid: rank for uid, rank in self._named.items() if rank not in standbys.values()}
        self._named = {**others, **standbys}
        for pod in self._pods:
            self._give_rank(pod)

    def forget_standbys(self) -> set[str]:
        """Ends all assignments of standbys. Returns the launchers of all standbys that were ever ordered to take a rank."""
        self._named = {}
        return self._told

    def _give_rank(self, pod: _Pod) -> None:
        if pod.state.HasField("standby") and (rank := self._named.get(pod.state.pod_uid)) is not None:
            log.info("standby assigned to a pod", extra={"uid": pod.state.pod_uid, "pod_rank": rank})
            self._told.add(pod.state.pod)
            pod.outbox.put_nowait(PodOrder(take=Take(pod_rank=rank)))

    def _order(self, about: str, order: PodOrder) -> None:
        log.info("pod told its rank", extra={"order": order.WhichOneof("kind"), "about": about})
        self._orders[about] = order
        for pod in self._pods:
            pod.outbox.put_nowait(order)
