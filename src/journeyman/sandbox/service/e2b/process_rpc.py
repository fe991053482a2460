"""`process.Process`: starting processes in a sandbox, listening and talking to them."""

import asyncio
import base64
import binascii
import errno
import signal
from collections.abc import AsyncGenerator
from typing import Any

from journeyman.sandbox.node.files import stat_file
from journeyman.sandbox.node.link import GuestFileError
from journeyman.sandbox.node.process_events import Ended, Event, Output
from journeyman.sandbox.node.processes import GuestProcess, ProcessSpec, TerminalSize
from journeyman.sandbox.service.e2b.connect_rpc import ConnectError, Message
from journeyman.sandbox.service.e2b.place import resolve, user_of
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.types.failure import SandboxError

_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}
_KEEPALIVE_S = 50.0


async def list_processes(sandbox: LivingSandbox, _: Message) -> Message:
    return {"processes": [_info(process) for process in sandbox.processes.list()]}


def _info(process: GuestProcess) -> Message:
    spec = process.spec
    config: Message = {"cmd": spec.argv[0], "args": list(spec.argv[1:]), "envs": dict(spec.env)}
    if spec.cwd:
        config["cwd"] = spec.cwd
    return {"pid": process.pid, "config": config, **({"tag": spec.tag} if spec.tag else {})}


async def start(
    sandbox: LivingSandbox, message: Message, user: str, keepalive_s: float = _KEEPALIVE_S
) -> AsyncGenerator[Message, None]:
    """Its events, from the first one on. A listener who goes away leaves it running."""
    spec = await _spec(sandbox, message, user)
    try:
        async with sandbox.guest() as link:
            process = await sandbox.processes.start(link, spec)
    except SandboxError as error:
        raise ConnectError("internal", str(error)) from None
    async for event in _events(process, True, keepalive_s):
        yield event


async def _spec(sandbox: LivingSandbox, message: Message, name: str) -> ProcessSpec:
    process = message.get("process", {})
    async with sandbox.guest() as link:
        user, _ = await user_of(link, name)
        cwd = resolve(process["cwd"], user) if process.get("cwd") else ""
        if cwd:
            try:
                entry = await stat_file(link, cwd, follow=True)
            except GuestFileError:
                entry = None
            if entry is None or entry.kind != "d":
                raise ConnectError("invalid_argument", f"cwd '{cwd}' does not exist")
    env = {key: value for key, value in sandbox.record.env.items() if key != "HOME"}
    terminal = _size(message["pty"].get("size", {})) if "pty" in message else None
    return ProcessSpec(
        argv=[process.get("cmd", ""), *process.get("args", ())],
        cwd=cwd,
        env={**env, **process.get("envs", {})},
        user=name,
        # Left out by clients from before there was a choice, who expect a standard input.
        stdin=message.get("stdin", True),
        terminal=terminal,
        tag=message.get("tag", ""),
    )


def _size(size: Message) -> TerminalSize:
    return TerminalSize(rows=int(size.get("rows", 24)), columns=int(size.get("cols", 80)))


async def connect(
    sandbox: LivingSandbox, message: Message, keepalive_s: float = _KEEPALIVE_S
) -> AsyncGenerator[Message, None]:
    """What a running process says, and what nobody has heard of it yet."""
    async for event in _events(_selected(sandbox, message), True, keepalive_s):
        yield event


async def _events(
    process: GuestProcess, replay: bool, keepalive_s: float
) -> AsyncGenerator[Message, None]:
    yield {"event": {"start": {"pid": process.pid}}}
    events = process.events(replay)
    waiting = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=keepalive_s)
            if not done:
                yield {"event": {"keepalive": {}}}
                continue
            event = waiting.result()
            if isinstance(event, Ended):
                yield {"event": {"end": _end(event)}}
                return
            if (data := _data(event)) is not None:
                yield {"event": {"data": data}}
            waiting = asyncio.ensure_future(anext(events))
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()  # type: ignore[attr-defined]


def _data(event: Event) -> Message | None:
    if not isinstance(event, Output):
        return None
    names = {"stdout": "stdout", "stderr": "stderr", "terminal": "pty"}
    return {names[event.stream]: base64.b64encode(event.data).decode("ascii")}


def _end(end: Ended) -> Message:
    if end.error:
        raise ConnectError("unavailable", f"the connection to the sandbox ended: {end.error}")
    if end.exit_code is not None:
        status = f"exit status {end.exit_code}"
        return {
            "exitCode": end.exit_code,
            "exited": True,
            "status": status,
            **({"error": status} if end.exit_code else {}),
        }
    number = end.signal or signal.SIGKILL
    word = signal.strsignal(number) or str(number)
    return {"exitCode": -1, "exited": False, "status": f"signal: {word.lower()}", "error": word}


def _selected(sandbox: LivingSandbox, message: Message) -> GuestProcess:
    selector: dict[str, Any] = message.get("process", {})
    if "tag" in selector:
        tag = selector["tag"]
        found = next((one for one in sandbox.processes.list() if one.spec.tag == tag), None)
        name = f"tag {tag}"
    else:
        name = f"pid {selector.get('pid', 0)}"
        found = sandbox.processes.get(int(selector.get("pid", 0)))
    if found is None:
        raise ConnectError("not_found", f"process with {name} not found")
    return found


async def send_input(sandbox: LivingSandbox, message: Message) -> Message:
    process = _selected(sandbox, message)
    given: dict[str, str] = message.get("input", {})
    try:
        data = base64.b64decode(given.get("stdin") or given.get("pty") or "", validate=True)
        await process.send_input(data)
    except binascii.Error:
        raise ConnectError("invalid_argument", "the input is no base64") from None
    except BrokenPipeError:
        raise ConnectError("not_found", f"process {process.pid} has ended") from None
    except SandboxError as error:
        raise ConnectError("invalid_argument", error.cause) from None
    return {}


async def close_stdin(sandbox: LivingSandbox, message: Message) -> Message:
    await _selected(sandbox, message).close_input()
    return {}


async def send_signal(sandbox: LivingSandbox, message: Message) -> Message:
    process = _selected(sandbox, message)
    number = _SIGNALS.get(message.get("signal", ""))
    if number is None:
        raise ConnectError("invalid_argument", f"unknown signal {message.get('signal')!r}")
    try:
        await (process.kill() if number is signal.SIGKILL else process.signal(number))
    except GuestFileError as error:
        if error.errno != errno.ESRCH:
            raise
    return {}


async def update(sandbox: LivingSandbox, message: Message) -> Message:
    if "pty" in message:
        await _selected(sandbox, message).resize(_size(message["pty"].get("size", {})))
    return {}
