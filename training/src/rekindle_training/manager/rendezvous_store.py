"""Rendezvous of the job's communicators: a store in the manager, so that rank 0 can be replaced like any other rank.

Importing torch takes seconds. It is imported in a thread, so that the manager can serve connections at once.
"""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Store:
    port: int
    life: str
    """Part of every prefix, which separates the generations of different managers."""
    server: Any
    """Server of the store. The reference keeps it alive."""

    def prefix(self, generation: int) -> str:
        return f"{self.life}/generation-{generation}"


async def open_store() -> Store:
    return await asyncio.to_thread(_open)


def _open() -> Store:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return Store(port=server.port, life=uuid.uuid4().hex[:12], server=server)
