"""Reads the orders of the control plane and has each carried out once. The gateway receives them, the coordinator obeys.

After an outage the control plane repeats the order of its stored phase. The attempt's uuid shows that it is a repetition.
"""

import json
import logging
from collections.abc import Collection

from rekindle_training.manager.coordinator import Coordinator
from rekindle_training.manager.recovery import OF_PODS, Kind, Order
from rekindle_training.manager.reports import CONTINUE, DOWNGRADE, DUMP, EXIT, MIGRATION, RECOVER, RETRY, UPGRADE
from rekindle_wire.recover_pb2 import ProcessManageSignal

log = logging.getLogger(__name__)

KEEP_ALIVE = "keep-alive"
PAUSE = "pause_train"

Key = tuple[str, str, tuple[str, ...], str]


class Orders:
    """Orders of the control plane to one manager."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._seen: set[Key] = set()
        self._last: Key | None = None
        self._decided: set[str] = set()
        """Attempts in which a strategy was ordered, by their uuids."""

    def obey(self, signal: ProcessManageSignal) -> None:
        if signal.signalType == KEEP_ALIVE:
            return
        key: Key = (signal.uuid, signal.signalType, tuple(signal.actions), signal.changeStrategy)
        fields = {"order": signal.signalType, "actions": ",".join(signal.actions), "strategy": signal.changeStrategy}
        maintenance = PAUSE in signal.actions or signal.changeStrategy == CONTINUE  # the maintenance knows what it has answered
        if self._is_overtaken(key) or (self._is_repeated(key) and not maintenance):
            log.info("repeated order ignored", extra=fields)
            return
        log.info("order received", extra={**fields, "uuid": signal.uuid})
        if signal.changeStrategy == CONTINUE:
            self._coordinator.go_on(signal.uuid)
        elif maintenance:
            self._coordinator.pause(signal.uuid)
        elif signal.changeStrategy == UPGRADE:
            self._grow(signal)
        else:
            self._carry_out(signal)

    def _is_repeated(self, key: Key) -> bool:
        """Returns whether this order was received before.

        The original control plane sends a hot switch without a uuid. Such an order counts as repeated only if it equals the
        last one.
        """
        repeated = key in self._seen if key[0] else key == self._last
        self._seen.add(key)
        self._last = key
        return repeated

    def _is_overtaken(self, key: Key) -> bool:
        """Returns whether this order precedes a strategy of its attempt that was received already.

        The strategy comes last in an attempt. A new stream may bring it first, and then the whole attempt again: a stop that
        follows would keep training paused for ever.
        """
        uuid, strategy = key[0], key[3]
        if strategy and uuid:
            self._decided.add(uuid)
        return not strategy and uuid in self._decided

    def _carry_out(self, signal: ProcessManageSignal) -> None:
        match (signal.signalType, *(signal.actions or [""])):
            case ("hot-switch", "hot switch"):
                self._prepare(signal)
            case ("hot-switch", "stop switch"):
                self._coordinator.stop()
            case ("hot-switch", "new pod running"):
                self._backup_runs(signal)
            case ("changeStrategy", *_) if signal.changeStrategy == MIGRATION:
                self._coordinator.migrate()
            case ("changeStrategy", *_) if signal.changeStrategy == EXIT and not signal.nodeRankIds:
                self._coordinator.dismiss_all()
            case ("killMaster", *_):
                self._coordinator.dismiss_all()
            case _ if (kind := _kind(signal)) is not None:
                self._coordinator.recover(self._order(kind, signal))
            case _:
                log.warning("unknown order rejected", extra={"order": signal.signalType})

    def _prepare(self, signal: ProcessManageSignal) -> None:
        try:
            self._coordinator.prepare(self._ranks(signal))
        except ValueError as error:
            log.warning("invalid hot switch order rejected", extra={"reason": error})
            self._coordinator.refuse_switch()

    def _grow(self, signal: ProcessManageSignal) -> None:
        try:
            ranks = self._ranks_of_pods(signal)
            standbys = self._standbys(signal, ranks)
            self._coordinator.grow(ranks, signal.uuid)
            self._coordinator.name_standbys(standbys)
        except ValueError as error:
            log.warning("invalid order to grow rejected", extra={"reason": error})
            self._coordinator.refuse_growth(str(error), signal.uuid)

    def _backup_runs(self, signal: ProcessManageSignal) -> None:
        if not (switched := self._coordinator.switched):
            log.warning("order rejected, no hot switch runs")
            return
        try:
            self._coordinator.name_standbys(self._standbys(signal, switched))
        except ValueError as error:
            log.warning("invalid standby order rejected", extra={"reason": error})
            self._coordinator.stop()
            self._coordinator.refuse_switch()

    def _order(self, kind: Kind, signal: ProcessManageSignal) -> Order:
        """Returns an order for the recovery. An order to stop training is valid whatever ranks it names."""
        try:
            if kind in OF_PODS:
                ranks = self._ranks_of_pods(signal)
                return Order(kind, signal.uuid, ranks, {} if kind is Kind.SMALLER else self._standbys(signal, ranks))
            return Order(kind, signal.uuid, self._ranks(signal))
        except ValueError as error:
            return Order(kind, signal.uuid, problem="" if kind is Kind.STOP else str(error))

    def _ranks(self, signal: ProcessManageSignal) -> frozenset[int]:
        ranks = self._coordinator.ranks
        return frozenset(_number("faultRanks", fault.rankId, ranks) for fault in signal.faultRanks)

    def _ranks_of_pods(self, signal: ProcessManageSignal) -> frozenset[int]:
        per_pod = self._coordinator.ranks_per_pod
        pods = {_number("nodeRankIds", pod, self._coordinator.ranks // per_pod) for pod in signal.nodeRankIds}
        if not pods:
            raise ValueError("nodeRankIds: no pod is named that is to be replaced, to leave or to come back")
        return frozenset(pod * per_pod + local for pod in pods for local in range(per_pod))

    def _standbys(self, signal: ProcessManageSignal, ranks: Collection[int]) -> dict[str, int]:
        """Returns the pod ranks that standby pods take, by the uids of these pods.

        Args:
            ranks: ranks of all pods that are replaced.

        Raises:
            ValueError: the order is invalid; the message names the field.
        """
        try:
            said = json.loads(signal.extraParams or "{}")
            standbys = said.get("standbys", {}).items()
        except (ValueError, AttributeError, RecursionError):
            raise ValueError(
                f"extraParams: {signal.extraParams[:100]!r} is not a JSON object with an object of standbys"
            ) from None
        per_pod = self._coordinator.ranks_per_pod
        found = {uid: _number("extraParams", json.dumps(pod), self._coordinator.ranks // per_pod) for uid, pod in standbys}
        if others := [pod for pod in found.values() if pod * per_pod not in ranks]:
            raise ValueError(f"extraParams: a standby is to take pod rank {others[0]}, which is not replaced")
        if len(set(found.values())) < len(found):
            raise ValueError("extraParams: two standbys are to take one pod rank")
        return found


def _kind(signal: ProcessManageSignal) -> Kind | None:
    match (signal.signalType, *signal.actions):
        case ("stopTrain", *_):
            return Kind.STOP
        case ("globalFault", *_):
            return Kind.ANNOUNCE
        case ("changeStrategy", *actions) if signal.changeStrategy == RECOVER:
            return Kind.IN_PLACE if "fault_nodes_restart" in actions else Kind.ELSEWHERE
        case ("changeStrategy", *_):
            return STRATEGIES.get(signal.changeStrategy)
    return None


STRATEGIES = {RETRY: Kind.RETRY, DUMP: Kind.DUMP, EXIT: Kind.AGAIN, DOWNGRADE: Kind.SMALLER}
"""Kinds of orders by their strategy. An `exit` names pods here: without them all processes leave."""


def _number(field: str, text: str, end: int) -> int:
    """Returns the number in a field. Raises ValueError unless it is from 0 to `end` - 1."""
    if not text.isdigit() or int(text) >= end:
        raise ValueError(f"{field}: {text!r} is not one of 0 to {end - 1}")
    return int(text)
