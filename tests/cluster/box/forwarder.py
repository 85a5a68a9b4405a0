"""A program: take connections on a listening socket of the host and carry them to an address inside a network namespace.

Started by `cluster.py` with the number of an open listening socket. It first has the socket, then moves into the namespace: what it accepts comes
from the host, what it opens goes to the box. Usage: forwarder.py FD NAMESPACE HOST PORT
"""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from box.network import enter


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Forward for ever."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await source.read(65536):
                sink.write(block)
                await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # a reset, as a closed port would give
            return
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        for each in (far_writer, writer):
            each.close()

    server = await asyncio.start_server(accept, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    handle, namespace, to_host, to_port = sys.argv[1:]
    open_socket = socket.socket(fileno=int(handle))
    enter(namespace)
    asyncio.run(serve(open_socket, to_host, int(to_port)))
