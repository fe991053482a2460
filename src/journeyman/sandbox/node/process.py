"""Starting an engine's process with pipes to the guest, inside its control groups."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from journeyman.types.failure import SandboxError

# Joins the groups before the engine starts, so that nothing it ever allocates escapes them.
_JOIN_AND_RUN = (
    'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 70; shift; done; shift; exec "$@"'
)
# The same, after a limit on the size of any file, in blocks of 512 bytes.
_LIMIT_JOIN_AND_RUN = f'ulimit -f "$1"; shift; {_JOIN_AND_RUN}'


@dataclass
class GuestPipes:
    """The host's two ends, as descriptors."""

    from_guest: int
    to_guest: int

    def close(self) -> None:
        for descriptor in (self.from_guest, self.to_guest):
            os.close(descriptor)


def clean_environment() -> dict[str, str]:
    """Engines see a path and nothing else of the host's variables."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def _append(path: Path) -> BinaryIO:
    return open(path, "ab")


async def spawn_with_pipes(
    argv: Sequence[str], *, groups: Sequence[Path], log: Path
) -> tuple[asyncio.subprocess.Process, GuestPipes]:
    """Start `argv` in `groups`, its stdin and stdout piped to us, stderr appended to `log`."""
    stdin, to_guest = os.pipe()
    from_guest, stdout = os.pipe()
    pipes = GuestPipes(from_guest, to_guest)
    try:
        with _append(log) as stderr:
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", _JOIN_AND_RUN, "sh"),
                *(str(group) for group in groups),
                "--",
                *argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=clean_environment(),
            )
    except BaseException:
        pipes.close()
        raise
    finally:
        os.close(stdin)
        os.close(stdout)
    return process, pipes


async def spawn_engine(
    argv: Sequence[str],
    *,
    groups: Sequence[Path],
    log: Path,
    inherited: Sequence[int],
    file_bytes: int,
) -> asyncio.subprocess.Process:
    """Start `argv` in `groups` with the `inherited` descriptors; all it prints goes to `log`.
    No file it writes, the log included, grows beyond `file_bytes`."""
    with _append(log) as output:
        return await asyncio.create_subprocess_exec(
            *("sh", "-c", _LIMIT_JOIN_AND_RUN, "sh", str(file_bytes // 512)),
            *(str(group) for group in groups),
            "--",
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=clean_environment(),
            pass_fds=inherited,
        )


async def run(argv: Sequence[str], *, timeout_s: float) -> str:
    """Run an engine's command to its end; returns what it printed. Raises SandboxError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=clean_environment(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise SandboxError(f"'{' '.join(argv)}' took over {timeout_s:g} s") from None
        raise
    text = output.decode("utf-8", "replace").strip()
    if process.returncode:
        raise SandboxError(f"'{' '.join(argv)}' ended with {process.returncode}: {text[-2000:]}")
    return text


def kill_pidfd(pidfd: int) -> None:
    """SIGKILL through a descriptor, which cannot hit a recycled process id."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
