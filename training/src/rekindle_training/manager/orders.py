"""Reads the orders of the control plane and has each carried out once. The gateway's stream brings them, the conductor obeys.

After an outage the control plane repeats the order of its stored phase. The attempt's uuid makes that visible.
"""

import logging

from rekindle_training.manager.conductor import Conductor
from rekindle_wire.recover_pb2 import ProcessManageSignal

log = logging.getLogger(__name__)

KEEP_ALIVE = "keep-alive"

Key = tuple[str, str, tuple[str, ...], str]


class Orders:
    """The dialogue of one manager's life."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._seen: set[Key] = set()
        self._last: Key | None = None

    def obey(self, signal: ProcessManageSignal) -> None:
        if signal.signalType == KEEP_ALIVE:
            return
        key: Key = (signal.uuid, signal.signalType, tuple(signal.actions), signal.changeStrategy)
        fields = {"order": signal.signalType, "actions": ",".join(signal.actions), "strategy": signal.changeStrategy}
        if self._is_repeated(key):
            log.info("ignored a repeated order", extra=fields)
            return
        log.info("order", extra={**fields, "uuid": signal.uuid})
        self._carry_out(signal)

    def _is_repeated(self, key: Key) -> bool:
        """Without a uuid, as the original control plane sends a hot switch, only the same order twice in a row is one."""
        repeated = key in self._seen if key[0] else key == self._last
        self._seen.add(key)
        self._last = key
        return repeated

    def _carry_out(self, signal: ProcessManageSignal) -> None:
        match (signal.signalType, *(signal.actions or [""])):
            case ("hot-switch", "hot switch"):
                self._conductor.prepare(frozenset(int(fault.rankId) for fault in signal.faultRanks))
            case ("hot-switch", "stop switch"):
                self._conductor.stop()
            case ("hot-switch", "new pod running"):
                pass
            case ("changeStrategy", *_) if signal.changeStrategy == "migration":
                self._conductor.migrate()
            case ("changeStrategy", *_) if signal.changeStrategy == "exit":
                self._conductor.dismiss_all()
            case ("killMaster", *_):
                self._conductor.dismiss_all()
            case _:
                log.warning("this version cannot carry out that order", extra={"order": signal.signalType})
