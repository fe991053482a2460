"""Carrying bytes between two connections."""

import asyncio
from contextlib import suppress

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK_BYTES = 256 << 10


async def join(one: Streams, other: Streams) -> None:
    """Carry bytes both ways until either side ends; then both have ended: one that waits for an
    end that is gone would wait for ever."""
    pumps = [
        asyncio.create_task(_pump(one[0], other[1])),
        asyncio.create_task(_pump(other[0], one[1])),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        for _, writer in (one, other):
            writer.close()  # what it holds still goes out


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
