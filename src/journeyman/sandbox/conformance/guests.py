"""Programs that cases run in guests, and what they say."""

import json
from typing import Any

from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.conformance.case import equal

HOLDER = b"""
import hashlib, os, time
data = os.urandom(64 << 20)
def tell(path):
    with open(path + ".new", "w") as file:
        file.write(hashlib.sha256(data).hexdigest())
    os.rename(path + ".new", path)
tell("/tmp/ready")
while True:
    if os.path.exists("/tmp/ask"):
        os.unlink("/tmp/ask")
        tell("/tmp/answer")
    time.sleep(0.05)
"""
"""Holds 64 MiB of random bytes in memory and tells their digest when asked."""

_IDENTITY = """
import json, os, random, socket, time
read = lambda path: open(path).read().strip()
print(json.dumps({
  "urandom": os.urandom(8).hex(), "random": random.random(), "host": socket.gethostname(),
  "machine": read("/etc/machine-id"), "boot": read("/proc/sys/kernel/random/boot_id"),
  "time": time.time(), "monotonic": time.monotonic()}))
"""
DIFFER_IN_FORKS = ("urandom", "random", "host", "machine", "boot")


async def start_holder(sandbox: RemoteSandbox) -> bytes:
    """Of HOLDER at /root/holder.py; returns the digest of what it holds."""
    script = "python3 /root/holder.py & while ! test -s /tmp/ready; do sleep 0.05; done"
    result = await sandbox.exec(["sh", "-c", f"{script}; cat /tmp/ready"], timeout_s=60)
    equal(result.exit_code, 0)
    return result.stdout


async def digest_of_holder(sandbox: RemoteSandbox) -> bytes:
    await sandbox.write_file("/tmp/ask", b"")
    script = "while ! test -s /tmp/answer; do sleep 0.05; done; cat /tmp/answer; rm /tmp/answer"
    return (await sandbox.exec(["sh", "-c", script], timeout_s=60)).stdout


async def identity(sandbox: RemoteSandbox) -> dict[str, Any]:
    result = await sandbox.exec(["python3", "-I", "-S", "-c", _IDENTITY])
    equal((result.exit_code, result.stderr), (0, b""))
    found: dict[str, Any] = json.loads(result.stdout)
    return found
