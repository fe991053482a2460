"""Confines: limits, neighbours, network, the host."""

import os
from pathlib import Path

from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.conformance.case import Bench, case, equal, require
from journeyman.sandbox.conformance.promises import KERNEL, LIMITS
from journeyman.types.failure import SandboxExhausted
from journeyman.types.sandbox import Environment

_MODEST_BYTES = 256 << 20
_CROWD = """
import os, time
n = 0
try:
    while n < 400:
        if not os.fork():
            os.close(1)
            time.sleep(300)
            os._exit(0)
        n += 1
except BlockingIOError:
    pass
print(n)
"""


@case("a memory hog is ended; the sandbox goes on and so does its neighbour", LIMITS)
async def a_memory_hog_is_ended(bench: Bench) -> None:
    neighbour = await bench.create()
    template = await bench.client.build_template(TemplateSpec(memory_bytes=_MODEST_BYTES))
    sandbox = bench.own(await bench.client.create(Environment(template=template)))
    hog = "x = []\nwhile True: x.append(b'x' * (8 << 20))"
    result = await sandbox.exec(["python3", "-c", hog], timeout_s=120)
    require((result.exit_code, result.signal) in ((1, None), (None, 9)), result)
    equal((await sandbox.exec(["echo", "on"])).stdout, b"on\n")
    equal((await neighbour.exec(["echo", "on"])).stdout, b"on\n")


@case("processes beyond the limit cannot start, and the agent answers", LIMITS)
async def processes_are_limited(bench: Bench) -> None:
    sandbox = await bench.create()
    result = await sandbox.exec(["python3", "-c", _CROWD], timeout_s=120)
    require(result.exit_code == 0 and 200 < int(result.stdout) < 300, result)
    # They are all still there: nothing can be started, but the agent needs no process.
    equal(await sandbox.read_file("/etc/hostname"), sandbox.id.encode())


@case("a fork bomb harms nobody else; its sandbox answers or ends as the policy's doing", LIMITS)
async def a_fork_bomb_is_contained(bench: Bench) -> None:
    neighbour = await bench.create()
    sandbox = await bench.create()
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    try:
        await sandbox.exec(["python3", "-c", bomb], timeout_s=5)
        equal((await sandbox.exec(["echo", "on"], timeout_s=30)).stdout, b"on\n")
    except SandboxExhausted:
        pass
    equal((await neighbour.exec(["echo", "on"])).stdout, b"on\n")


@case("a hundred thousand open files are refused")
async def open_files_are_limited(bench: Bench) -> None:
    sandbox = await bench.create()
    script = (
        "import os\nn = 0\ntry:\n  while n < 100000: os.open('/dev/null', 0); n += 1\n"
        "except OSError: print(n)"
    )
    result = await sandbox.exec(["python3", "-c", script])
    require(result.exit_code == 0 and int(result.stdout) < 5000, result)


@case("there is no network but loopback")
async def there_is_no_network(bench: Bench) -> None:
    sandbox = await bench.create()
    reach = "import socket; socket.create_connection(('192.0.2.1', 53), 3)"
    result = await sandbox.exec(["python3", "-c", reach], timeout_s=20)
    require(result.exit_code == 1 and b"OSError" in result.stderr, result)
    inside = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname()); s.accept(); print('ok')"
    )
    equal((await sandbox.exec(["python3", "-c", inside])).stdout, b"ok\n")


@case("nothing of the host is inside: variables, files, processes")
async def the_host_is_not_inside(bench: Bench) -> None:
    sandbox = await bench.create()
    marker = f"journeyman-conformance-{os.getpid()}"
    names = (await sandbox.exec(["env"])).stdout.decode()
    equal({line.split("=")[0] for line in names.splitlines()}, {"PATH", "HOME", "LANG"})
    here = Path(f"/proc/{os.getpid()}/cmdline").read_bytes()  # noqa: ASYNC240
    listed = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"])
    require(here not in listed.stdout, "a process of the host is listed")
    await sandbox.exec(["touch", f"/tmp/{marker}"])
    require(not Path(f"/tmp/{marker}").exists(), "a file of the guest is on the host")  # noqa: ASYNC240


@case("a sandbox sees nothing of its neighbour")
async def neighbours_are_apart(bench: Bench) -> None:
    one, other = await bench.create(), await bench.create()
    await one.write_file("/root/secret", b"secret")
    await one.exec(["sh", "-c", "exec -a neighbour sleep 300 >/dev/null 2>&1 &"])
    equal((await other.exec(["test", "-e", "/root/secret"])).exit_code, 1)
    equal((await other.exec(["pgrep", "-f", "sleep 300"])).exit_code, 1)


@case("the guest's kernel is not the host's", KERNEL)
async def the_kernel_is_its_own(bench: Bench) -> None:
    sandbox = await bench.create()
    told = (await sandbox.exec(["cat", "/proc/version"])).stdout
    require(told != Path("/proc/version").read_bytes(), told)  # noqa: ASYNC240
