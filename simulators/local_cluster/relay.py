"""Relay from the cluster's network to the gateway: the only connection to the outside.

Started by the cluster as a separate file with `-I`, before the cluster leaves the machine's network. `relay.py HOST PORT` waits
on its stdin, a socket, for the listening socket that belongs to the cluster's network. It ends when the cluster ends.
"""

import asyncio
import signal
import socket
import sys

PIECE = 256 * 1024


async def main(control: socket.socket, host: str, port: int) -> None:
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not descriptors:  # the cluster ended before it had a network
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(control, ended.set)

    async def passes_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_it, to_it = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # as if the gateway's machine refused the connection
            return
        await asyncio.gather(_copy(reader, to_it), _copy(from_it, writer))

    async with await asyncio.start_server(passes_on, sock=socket.socket(fileno=descriptors[0])):
        await ended.wait()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes until one side ends; then both directions are closed."""
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    finally:
        writer.close()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(main(socket.socket(fileno=0), sys.argv[1], int(sys.argv[2])))
