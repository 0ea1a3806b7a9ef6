"""Which ranks are faulty, and the report of each. One for each recovery.

A rank that only lost the others is not faulty. Where nobody else is found to be, the network is.
"""

import asyncio

from rekindle_training.manager.reports import MEMORY_FAULT, NETWORK_FAULT, NORMAL_FAULT, Reports
from rekindle_wire.training_pb2 import Standing

MERGE_SECONDS = 0.01
"""Ranks that fail together are reported together."""
NAMED_SECONDS = 0.5
"""So long after a step that failed by lost connections somebody may still turn out to be gone."""


class Faults:
    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._known: dict[int, str] = {}
        self._waiting: dict[int, str] = {}
        """To be reported in a moment."""
        self._suspected: int | None = None

    @property
    def known(self) -> dict[int, str]:
        """Types by rank."""
        return dict(self._known)

    def gone(self, rank: int) -> None:
        """It has no process that trains."""
        self._add(rank, NORMAL_FAULT)

    def failed(self, rank: int, standing: Standing) -> None:
        """Its step failed there, or it lost the others."""
        if standing.reason:
            self._add(rank, MEMORY_FAULT if standing.fault == Standing.MEMORY else NORMAL_FAULT)
        elif self._suspected is None:
            self._suspected = rank

    def blame_network(self) -> None:
        """Where a step failed by lost connections and nobody was found to be the cause."""
        if self._suspected is not None and not self._known:
            self._add(self._suspected, NETWORK_FAULT)

    def tell(self, suspected: int) -> None:
        """At once, of something that has failed: where nobody is found to be the cause, it is the network between this rank and
        the others."""
        self._suspected = suspected
        self.blame_network()
        self._report()

    def _add(self, rank: int, kind: str) -> None:
        """A process that has ended stays ended."""
        if self._known.get(rank) in (kind, NORMAL_FAULT):
            return
        self._known[rank] = kind
        if not self._waiting:
            asyncio.get_running_loop().call_later(MERGE_SECONDS, self._report)
        self._waiting[rank] = kind

    def _report(self) -> None:
        if self._waiting:
            self._reports.process_fault(self._waiting)
        self._waiting = {}
