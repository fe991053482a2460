"""Hibernate, resume and fork of real sandboxes."""

import asyncio
import json
import time

import pytest

from journeyman.sandbox.client import Run, SetEnv, TemplateSpec, Workdir
from journeyman.types import Environment, SandboxGone

IDENTITY = """
import json, os, random, socket, time
read = lambda p: open(p).read().strip()
print(json.dumps({
  "urandom": os.urandom(8).hex(), "random": random.random(), "host": socket.gethostname(),
  "machine": read("/etc/machine-id"), "boot": read("/proc/sys/kernel/random/boot_id"),
  "time": time.time(), "monotonic": time.monotonic()}))
"""


async def identity(sandbox):
    result = await sandbox.exec(["python3", "-c", IDENTITY])
    assert result.exit_code == 0, result.text
    return json.loads(result.stdout)


def test_forks_share_the_past_and_nothing_else(run, fresh):
    async def check():
        async with fresh() as parent:
            await parent.write_file("/app/common", b"past")
            began = time.time()
            forks = await asyncio.gather(*(parent.fork() for _ in range(4)))
            machines = [parent, *forks]
            seen = await asyncio.gather(*(identity(machine) for machine in machines))
            took = time.time() - began
            for key in ("urandom", "random", "host", "machine", "boot"):
                values = [one[key] for one in seen]
                assert len(set(values)) == len(machines), (key, values)
            assert all(began - 0.1 < one["time"] < began + took + 0.1 for one in seen)
            await asyncio.gather(*(m.write_file("/app/mine", m.id.encode()) for m in machines))
            for machine in machines:
                assert await machine.read_file("/app/mine") == machine.id.encode()
                assert await machine.read_file("/app/common") == b"past"
            await asyncio.gather(*(fork.close() for fork in forks))

    run(check())


def test_processes_and_memory_go_on_in_a_fork(run, fresh):
    async def check():
        async with fresh() as parent:
            counter = "i=0; while true; do i=$((i+1)); echo $i >/tmp/count; sleep 0.05; done"
            await parent.exec(["sh", "-c", f"({counter}) >/dev/null 2>&1 &"])
            await asyncio.sleep(0.3)
            fork = await parent.fork()
            for machine in (parent, fork):
                first = int((await machine.read_file("/tmp/count")) or 0)
                await asyncio.sleep(0.5)
                second = int((await machine.read_file("/tmp/count")) or 0)
                assert second > first or second == 0
            await fork.close()

    run(check())


def test_hibernate_five_times_keeps_files_memory_and_identity(run, fresh):
    holder = (
        "import hashlib, os, sys, time\n"
        "data = os.urandom(64 << 20)\n"
        "digest = hashlib.sha256(data).hexdigest()\n"
        "open('/tmp/ready', 'w').write(digest)\n"
        "while True:\n"
        "    if os.path.exists('/tmp/ask'):\n"
        "        open('/tmp/answer.new', 'w').write(hashlib.sha256(data).hexdigest())\n"
        "        os.rename('/tmp/answer.new', '/tmp/answer')\n"
        "        os.unlink('/tmp/ask')\n"
        "    time.sleep(0.05)\n"
    )

    async def answer(sandbox):
        await sandbox.write_file("/tmp/ask", b"")
        script = "while test -e /tmp/ask; do sleep 0.05; done; cat /tmp/answer"
        return (await sandbox.exec(["sh", "-c", script], timeout_s=20)).stdout

    async def check():
        async with fresh() as sandbox:
            await sandbox.write_file("/app/holder.py", holder.encode())
            wait = "while ! test -s /tmp/ready; do sleep 0.05; done"
            await sandbox.exec(["sh", "-c", f"python3 /app/holder.py & {wait}"])
            digest = await sandbox.read_file("/tmp/ready")
            before = await identity(sandbox)
            for number in range(5):
                await sandbox.write_file(f"/app/file{number}", b"%d" % number)
                await sandbox.hibernate()
                # No resume: using it is enough.
                assert await answer(sandbox) == digest
            for number in range(5):
                assert await sandbox.read_file(f"/app/file{number}") == b"%d" % number
            after = await identity(sandbox)
            assert (after["boot"], after["machine"], after["host"]) == (
                before["boot"],
                before["machine"],
                before["host"],
            )
            assert after["monotonic"] >= before["monotonic"]
            assert abs(after["time"] - time.time()) < 1

    run(check())


def test_a_loopback_connection_survives_hibernation(run, fresh):
    server = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 7000)); open('/tmp/up', 'w').write('1')\n"
        "c, _ = s.accept()\n"
        "while data := c.recv(100): c.sendall(data.upper())\n"
    )
    client = (
        "import os, socket, time\n"
        "c = socket.create_connection(('127.0.0.1', 7000))\n"
        "open('/tmp/connected', 'w').write('1')\n"
        "while not os.path.exists('/tmp/go'): time.sleep(0.05)\n"
        "c.sendall(b'hello'); open('/tmp/said', 'wb').write(c.recv(100))\n"
    )

    async def check():
        async with fresh() as sandbox:
            await sandbox.write_file("/app/server.py", server.encode())
            await sandbox.write_file("/app/client.py", client.encode())
            wait = "while ! test -s /tmp/%s; do sleep 0.05; done"
            await sandbox.exec(["sh", "-c", f"python3 /app/server.py & {wait % 'up'}"])
            await sandbox.exec(["sh", "-c", f"python3 /app/client.py & {wait % 'connected'}"])
            await sandbox.hibernate()
            await sandbox.write_file("/tmp/go", b"")
            result = await sandbox.exec(["sh", "-c", f"{wait % 'said'}; cat /tmp/said"])
            assert result.stdout == b"HELLO"

    run(check())


def test_forking_a_hibernated_parent_works_and_leaves_it_hibernated(run, service, fresh):
    async def check():
        async with fresh() as parent:
            await parent.write_file("/app/x", b"1")
            await parent.hibernate()
            first, second = await asyncio.gather(parent.fork(), parent.fork())
            assert (await service.connect(parent.id)).info.state == "hibernated"
            await first.write_file("/app/x", b"2")
            assert await second.read_file("/app/x") == b"1"
            assert await parent.read_file("/app/x") == b"1"
            await first.close()
            await second.close()

    run(check())


def test_a_command_that_runs_while_its_sandbox_forks_is_not_disturbed(run, fresh):
    async def check():
        async with fresh() as parent:
            script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.15; done"
            running = asyncio.create_task(parent.exec(["sh", "-c", script]))
            await asyncio.sleep(0.2)
            fork = await parent.fork()
            assert (await fork.exec(["echo", "hi"])).stdout == b"hi\n"
            result = await running
            assert result.stdout == b"".join(b"%d\n" % i for i in range(1, 11))
            await fork.close()

    run(check())


def test_layers_environment_and_a_warm_process_are_in_every_sandbox(run, service):
    async def check():
        spec = TemplateSpec(
            layers=(
                Workdir(path="/made"),
                SetEnv(name="COLOUR", value="blue green"),
                Run(command='echo "$COLOUR" > once'),
            ),
            warm=("sh", "-c", "while true; do sleep 1000; done"),
        )
        template = await service.build_template(spec)
        assert await service.build_template(spec) == template
        sandbox = await service.create(Environment(template=template))
        assert await sandbox.read_file("/made/once") == b"blue green\n"
        assert (await sandbox.exec(["sh", "-c", "echo $COLOUR"])).stdout == b"blue green\n"
        assert (await sandbox.exec(["pgrep", "-fc", "sleep 1000"])).stdout.strip() >= b"1"
        derived = await service.build_template(
            TemplateSpec(base=template, layers=(Run(command="cat once once > twice"),))
        )
        other = await service.create(Environment(template=derived))
        assert await other.read_file("/made/twice") == b"blue green\n" * 2
        await sandbox.close()
        await other.close()

    run(check())


def test_closing_is_final_and_idempotent_even_while_a_call_runs(run, fresh):
    async def check():
        async with fresh() as sandbox:
            running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
            await asyncio.sleep(0.3)
            await asyncio.gather(sandbox.close(), sandbox.close())
            with pytest.raises(SandboxGone, match=sandbox.id):
                await running
            for call in (sandbox.exec(["true"]), sandbox.fork(), sandbox.resume()):
                with pytest.raises(SandboxGone, match=f"{sandbox.id} is gone: it was closed"):
                    await call

    run(check())
