"""Ranks of a job without any training: each sends the manager what the test wants it to receive."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import Goodbye, Hello, ManagerMessage, RankMessage, Stepped
from rekindle_wire.training_pb2_grpc import RanksStub

Answer = Callable[[ManagerMessage], RankMessage | None]
"""Answer of a rank to a message that the test is about; None is no answer."""


class ScriptedRank:
    """One process. It joins every generation at once and completes a step in it, unless it `stays` in that generation."""

    def __init__(  # what it is, and how it is met
        self,
        channel: Any,
        rank: int,
        role: str,
        answer: Answer,
        *,
        generation: int = 0,
        step: int = 0,
        paused: bool = False,
        stays: bool = False,
    ) -> None:
        self.told: list[str] = []
        self._stays = stays
        hello = Hello(rank=rank, role=role, process=f"{role}/{rank}", protocol=PROTOCOL, step=step, paused=paused)
        self._answer = answer
        self._says: asyncio.Queue[RankMessage] = asyncio.Queue()
        self._says.put_nowait(RankMessage(generation=generation, hello=hello))
        self._hears = asyncio.create_task(self._listen(RanksStub(channel)))

    def say(self, message: RankMessage) -> None:
        """Sends a message that is no answer."""
        self._says.put_nowait(message)

    def end(self) -> None:
        """Ends the process as if it was killed."""
        self._hears.cancel()

    async def finish(self, generation: int = 1) -> None:
        """Ends the process when its training is complete."""
        self._says.put_nowait(RankMessage(generation=generation, goodbye=Goodbye()))
        await self._hears

    async def left(self) -> None:
        """Waits until the stream to the manager has ended, however it ends."""
        await asyncio.wait({self._hears})

    async def _speak(self) -> AsyncIterator[RankMessage]:
        while True:
            yield (message := await self._says.get())
            if message.HasField("goodbye"):
                return

    async def _listen(self, stub: Any) -> None:
        async for message in stub.Join(self._speak(), wait_for_ready=True):
            self.told.append(kind := message.WhichOneof("kind"))
            joins = RankMessage(stepped=Stepped(step=1)) if kind == "rebuild" and not self._stays else None
            if answer := joins or self._answer(message):
                answer.generation = message.generation
                self._says.put_nowait(answer)
            if kind == "leave":
                self._says.put_nowait(RankMessage(generation=message.generation, goodbye=Goodbye()))
