"""Runs device checks one after the other beside the training loop, which waits at a boundary meanwhile. Made by the session.

A check has a separate thread. So this rank receives orders to go on, to stand for a recovery, or to leave, whatever the check
does. A check draws no random number, changes no setting of torch, and joins no process group of training.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from rekindle_training.environment import RankEnvironment
from rekindle_training.last_words import in_words
from rekindle_training.stress import injected, memory, messages, products
from rekindle_training.stress.codes import MEMORY, MESSAGES, NAMES, NOT_RUN, PRODUCTS
from rekindle_training.stress.messages import Meeting
from rekindle_training.stress.verdict import Turn, Verdict
from rekindle_wire.training_pb2 import StressTest, StressTested

log = logging.getLogger(__name__)


class Checks:
    """Device checks of one rank. The training loop calls `begin` and `stop`."""

    def __init__(self, environment: RankEnvironment, accelerator: str | None, tell: Callable[[StressTested], None]) -> None:
        self._environment = environment
        self._accelerator = accelerator
        self._tell = tell
        self._id = ""
        self._turn: Turn | None = None
        self._told: StressTested | None = None
        """Answer to the order `_id`. None: its check is still running."""

    def begin(self, order: StressTest) -> None:
        """Starts a check. A repeated order gets the same answer again; a new order replaces the current one."""
        if order.id == self._id:
            if self._told is not None:
                self._tell(self._told)
            return
        self.stop()
        self._id, self._told, self._turn = order.id, None, Turn(order.seconds)
        work = partial(self._run, order, self._device(), self._turn)
        threading.Thread(target=work, name="rekindle-checks", daemon=True).start()

    def stop(self) -> None:
        """Stops the current check. It ends the next time it looks at its `Turn`, and its result is not sent."""
        if self._turn is not None:
            self._turn.stop()

    def _device(self) -> torch.device:
        """Returns the device that the training loop has chosen. In another thread torch would choose the first one."""
        if self._accelerator is None:
            return torch.device("cpu")
        return torch.device(self._accelerator, getattr(torch, self._accelerator).current_device())

    def _run(self, order: StressTest, device: torch.device, turn: Turn) -> None:
        try:
            verdict = self._verdict(order, device, turn)
        except Exception as error:
            log.exception("device check aborted")
            verdict = Verdict(NOT_RUN, in_words(error))
        if not turn.stopped:
            log.info("device checked", extra={"check": NAMES.get(order.op), "code": verdict.code, "result": verdict.result})
            told = StressTested(id=order.id, code=verdict.code, result=verdict.result, wrong=verdict.wrong, silent=verdict.silent)
            self._told = told
            self._tell(told)

    def _verdict(self, order: StressTest, device: torch.device, turn: Turn) -> Verdict:
        disturb = injected.disturbance(order.op, self._environment.node)
        match order.op:
            case op if op == PRODUCTS:
                return products.check(device, turn, disturb)
            case op if op == MESSAGES:
                meeting = Meeting(tuple(order.peers), self._environment.rank, self._store(order))
                return messages.check(device, meeting, turn, disturb)
            case op if op == MEMORY:
                return memory.check(device, self._environment.ranks_per_pod, turn, disturb)
        return Verdict(NOT_RUN, f"operation {order.op} is not known here, accepted are {', '.join(map(str, NAMES))}")

    def _store(self, order: StressTest) -> dist.Store:
        limit = timedelta(seconds=order.seconds)
        client = dist.TCPStore(
            self._environment.master_addr, order.store_port, is_master=False, wait_for_workers=False, timeout=limit
        )
        return dist.PrefixStore(order.id, client)
