"""A sandbox that somebody works in: memory that was written to, files that were changed."""

from journeyman.sandbox.client import RemoteSandbox, SandboxClient, TemplateSpec
from journeyman.types.failure import SandboxError
from journeyman.types.sandbox import Environment

_LEASE_S = 3600.0
_WORK = b"""
import os, time
block = os.urandom(1 << 20)
data = bytearray(64 << 20)
turn = 0
while True:
    turn += 1
    stamped = block[:-8] + turn.to_bytes(8, "little")
    for number in range(64):
        data[number << 20 : (number + 1) << 20] = stamped
    for number in range(100):
        with open(f"/root/file{number}", "wb") as file:
            file.write(stamped)
    open("/tmp/ready", "w").write("1")
    while os.path.exists("/tmp/ready"):
        time.sleep(0.05)
"""
"""Writes 64 MiB of memory and 100 MiB of files, again whenever /tmp/ready is removed."""
_WAIT = "while ! test -s /tmp/ready; do sleep 0.1; done"


async def default_environment(client: SandboxClient) -> Environment:
    """Of the default template, built unless it is there."""
    return Environment(template=await client.build_template(TemplateSpec()))


async def worked_in(client: SandboxClient, environment: Environment) -> RemoteSandbox:
    """A sandbox whose process has written 64 MiB of memory and 100 MiB of files."""
    with_work = environment.model_copy(update={"files": {"/root/work.py": _WORK}})
    sandbox = await client.create(with_work, lease_s=_LEASE_S)
    await _run(sandbox, "sh", "-c", f"python3 /root/work.py >/dev/null 2>&1 & {_WAIT}")
    return sandbox


async def work_again(sandbox: RemoteSandbox) -> None:
    """As much is written once more: an engine may save only what has changed since."""
    await _run(sandbox, "sh", "-c", f"rm /tmp/ready; {_WAIT}")


async def run_true(sandbox: RemoteSandbox) -> None:
    """The smallest command there is. Raises SandboxError unless it ends with 0."""
    await _run(sandbox, "true")


async def _run(sandbox: RemoteSandbox, *argv: str) -> None:
    result = await sandbox.exec(argv, timeout_s=300)
    if result.exit_code != 0:
        raise SandboxError(f"a command of the benchmark failed: {result}")
