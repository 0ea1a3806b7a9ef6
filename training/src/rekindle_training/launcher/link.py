"""Connection of the launcher to the job's manager, in a separate thread. It reports processes and receives orders."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from rekindle_training import wire
from rekindle_wire.training_pb2 import PodOrder, PodState
from rekindle_wire.training_pb2_grpc import PodsStub

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
END_SECONDS = 1.0
"""Seconds that the launcher's end waits for a manager that does not answer."""

_Outbox = queue.SimpleQueue[PodState | None]


@dataclass(frozen=True)
class Refused:
    """Refusal by a manager of another release."""

    reason: str


class Link:
    """Stream to the manager. It reconnects by itself and then sends the latest state again."""

    def __init__(self, host: str, port: int, obey: Callable[[PodOrder | Refused], None]) -> None:
        self._address = f"{host}:{port}"
        self._obey = obey
        self._lock = threading.Lock()
        self._latest = PodState()
        self._outbox: _Outbox = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rekindle-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, state: PodState) -> None:
        with self._lock:
            self._latest = state
            self._outbox.put(state)

    def end(self) -> None:
        self._ended.set()
        self._outbox.put(None)
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        with grpc.insecure_channel(self._address, options=list(wire.CLIENT)) as channel:
            stub, silence = PodsStub(channel), wire.Silence(self._address)
            while not self._ended.is_set():
                with self._lock:
                    outbox: _Outbox = queue.SimpleQueue()
                    outbox.put(self._latest)
                    self._outbox = outbox
                silence.begin()
                try:
                    for order in stub.Attach(_speak(outbox, silence)):
                        self._obey(order)
                except grpc.RpcError as error:
                    log.debug("manager lost by the launcher, reconnecting", extra={"reason": str(error)})
                    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                        self._obey(Refused(error.details() or ""))
                finally:
                    outbox.put(None)
                self._ended.wait(RETRY_SECONDS)


def _speak(outbox: _Outbox, silence: wire.Silence) -> Iterator[PodState]:
    """Yields the latest state repeatedly, so that the manager can distinguish a frozen launcher from one without news."""
    latest: PodState | None = None
    while True:
        with contextlib.suppress(queue.Empty):
            latest = outbox.get(timeout=HEARTBEAT_SECONDS)
        if latest is None:
            return
        yield latest
        silence.end()
