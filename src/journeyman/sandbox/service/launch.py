"""Starting the service as a child of this program."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from journeyman.types.failure import SandboxError, UserError

_START_S = 120.0
_STOP_S = 20.0


@asynccontextmanager
async def running_service(driver: str = "auto", state: Path | None = None) -> AsyncIterator[str]:
    """A sandbox service as a child process, for the length of the block; yields its URL.

    It ends with this process, however that ends. Without `state` its sandboxes' state is
    temporary and removed at the end; with it, hibernated sandboxes outlive the service.
    Raises UserError when no sandbox can be started here.
    """
    directory = Path(tempfile.mkdtemp(prefix="journeyman-sandboxd-"))
    socket = directory / "socket"
    log = directory / "log"
    process = await _start(socket, state or directory / "state", driver, log)
    try:
        await _wait_until_ready(process, socket, log)
        yield f"unix://{socket}"
    finally:
        await asyncio.shield(_stop(process))
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _create(path: Path) -> BinaryIO:
    return open(path, "wb")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


async def _start(socket: Path, state: Path, driver: str, log: Path) -> asyncio.subprocess.Process:
    with _create(log) as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "journeyman.sandbox.service"),
            *("--socket", str(socket), "--state", str(state), "--driver", driver),
            *("--lifeline", "--remove-at-end", str(socket.parent)),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C is for us to handle: the service must outlive our own clean-up.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


async def _wait_until_ready(process: asyncio.subprocess.Process, socket: Path, log: Path) -> None:
    async with asyncio.timeout(_START_S):
        while process.returncode is None:
            if await _answers(socket):
                return
            await asyncio.sleep(0.02)
    text = _read(log)
    if process.returncode == 2:
        cause, _, cure = text.partition("\n")
        raise UserError(cause, cure.strip())
    raise SandboxError(f"the sandbox service ended with {process.returncode}: {text[-3000:]}")


async def _answers(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except (ConnectionError, FileNotFoundError):
        return False
    writer.close()
    return True


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Closing its stdin asks it to end; patience has a bound."""
    if process.stdin:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
