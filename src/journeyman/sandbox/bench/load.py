"""A sandbox that somebody has worked in: memory that was written to, files that were changed."""

from journeyman.sandbox.client import RemoteSandbox, SandboxClient, TemplateSpec
from journeyman.types.failure import SandboxError
from journeyman.types.sandbox import Environment

DIRTY_MEMORY_BYTES = 64 << 20
CHANGED_FILES_BYTES = 100 << 20
_LEASE_S = 3600.0
_HOLD = f"""
import os, time
held = os.urandom({DIRTY_MEMORY_BYTES})
open("/run/held", "w").close()
time.sleep(1e6)
"""


async def default_environment(client: SandboxClient) -> Environment:
    """Of the default template, built unless it is there."""
    return Environment(template=await client.build_template(TemplateSpec()))


async def worked_in(client: SandboxClient, environment: Environment) -> RemoteSandbox:
    """A process that holds `DIRTY_MEMORY_BYTES` of random bytes, and `CHANGED_FILES_BYTES` in
    files of 1 MiB."""
    sandbox = await client.create(environment, lease_s=_LEASE_S)
    files = CHANGED_FILES_BYTES >> 20
    await _run(sandbox, 'setsid python3 -c "$0" </dev/null >/dev/null 2>&1 &', _HOLD)
    await _run(
        sandbox,
        "mkdir /srv/changed && cd /srv/changed && "
        f"head -c {CHANGED_FILES_BYTES} /dev/urandom | split -b 1M -a 3 - part- && "
        f'test "$(ls | wc -l)" = {files} && '
        "for i in $(seq 300); do test -e /run/held && exit 0; sleep 0.1; done; exit 1",
    )
    return sandbox


async def run_true(sandbox: RemoteSandbox) -> None:
    """The smallest command there is. Raises SandboxError unless it ends with 0."""
    await _run(sandbox, "", argv=("true",))


async def _run(
    sandbox: RemoteSandbox, script: str, *arguments: str, argv: tuple[str, ...] = ()
) -> None:
    result = await sandbox.exec(argv or ("sh", "-c", script, *arguments), timeout_s=120)
    if result.exit_code != 0:
        raise SandboxError(f"a command of the benchmark failed: {result}")
