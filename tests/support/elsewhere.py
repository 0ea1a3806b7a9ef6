"""Connects to a server from another address of this machine, so that the server sees another client."""

import asyncio
from contextlib import suppress

HERE = "127.0.0.2"
"""Address of this machine: all of 127.0.0.0/8 are."""


class Elsewhere:
    """Relays bytes to a server, from the address `HERE`."""

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._passing: list[asyncio.Task[None]] = []
        self._froze = 0

    async def start(self) -> str:
        """Starts the relay, and returns its address."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._listener.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def cut(self) -> None:
        """Cuts the newest connection."""
        self._passing[-1].cancel()

    def freeze(self) -> None:
        """Loses all further bytes of the connections that are open now. Neither end notices anything by itself."""
        self._froze += 1

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._passing.append(asyncio.create_task(self._pass(reader, writer)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, int(self._port), local_addr=(HERE, 0))
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._copy(reader, up_writer), self._copy(up_reader, writer))
        except asyncio.CancelledError:
            for end in (writer, up_writer):
                end.transport.abort()
            raise
        finally:
            for end in (writer, up_writer):
                with suppress(OSError):
                    await end.wait_closed()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        froze = self._froze
        try:
            while data := await reader.read(65536):
                if froze == self._froze:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
