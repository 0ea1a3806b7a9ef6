"""Finds the faulty ranks, and reports each of them. One object for each recovery.

A rank that only lost the others is not faulty. If no other rank is found to be faulty, the network is.
"""

import asyncio

from rekindle_training.manager.reports import MEMORY_FAULT, NETWORK_FAULT, NORMAL_FAULT, Reports
from rekindle_wire.training_pb2 import Standing

MERGE_SECONDS = 0.01
"""Seconds for which a fault is held back, so that ranks that fail together are reported together."""
NAMED_SECONDS = 0.5
"""Seconds after a step failed by lost connections in which a rank may still turn out to be gone."""


class Faults:
    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._known: dict[int, str] = {}
        self._waiting: dict[int, str] = {}
        """Types of the faults that are not reported yet, by rank."""
        self._suspected: int | None = None

    @property
    def known(self) -> dict[int, str]:
        """Types of all faults, by rank."""
        return dict(self._known)

    def gone(self, rank: int) -> None:
        """Adds a rank that has no training process."""
        self._add(rank, NORMAL_FAULT)

    def failed(self, rank: int, standing: Standing) -> None:
        """Adds a rank whose step failed there, or that lost the others."""
        if standing.reason:
            self._add(rank, MEMORY_FAULT if standing.fault == Standing.MEMORY else NORMAL_FAULT)
        elif self._suspected is None:
            self._suspected = rank

    def blame_network(self) -> None:
        """Blames the network if a step failed by lost connections and no rank was found to be the cause."""
        if self._suspected is not None and not self._known:
            self._add(self._suspected, NETWORK_FAULT)

    def tell(self, suspected: int) -> None:
        """Reports immediately that something has failed.

        If no rank is found to be the cause, it is the network between this rank and the others.
        """
        self._suspected = suspected
        self.blame_network()
        self._report()

    def _add(self, rank: int, kind: str) -> None:
        """Adds a fault. A rank whose process has ended keeps that type."""
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
