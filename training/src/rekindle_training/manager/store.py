"""The rendezvous of the job's communicators: a store that lives in the manager, so that rank 0 is as replaceable as any other.

Importing torch takes seconds. It happens in a thread, so that the manager speaks to everybody at once.
"""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Store:
    port: int
    life: str
    """Part of every prefix: one manager's generations are never taken for another's."""
    server: Any
    """Keeps the store alive."""

    def prefix(self, generation: int) -> str:
        return f"{self.life}/generation-{generation}"


async def open_store() -> Store:
    return await asyncio.to_thread(_open)


def _open() -> Store:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return Store(port=server.port, life=uuid.uuid4().hex[:12], server=server)
