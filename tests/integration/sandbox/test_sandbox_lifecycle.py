"""Leases, crashes, leaks and refusals of the sandbox service."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from engines import DRIVER, engine_pid

from journeyman.config import home_dir
from journeyman.sandbox.client import Run, SandboxClient, TemplateSpec
from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.sandbox.service.launch import running_service
from journeyman.types import Environment, SandboxError, SandboxGone, UserError


def engine_processes(sandbox_id: str) -> list[str]:
    """Command lines of this machine's processes that name the sandbox."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if sandbox_id in line:
                found.append(line)
    return found


def sockets_left() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob("journeyman-sandboxd-*"))


def leftovers(sandbox_id: str, state: Path) -> list[str]:
    """Everything a sandbox could leave: processes, control groups, mounts, directories."""
    groups = [str(path) for path in ControlGroups().paths(sandbox_id) if path.exists()]
    mounts = [
        line
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        if sandbox_id in line
    ]
    files = [str(path) for path in state.rglob(f"*{sandbox_id}*")]
    return engine_processes(sandbox_id) + groups + mounts + files


async def eventually_nothing_left(sandbox_id: str, state: Path, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while left := leftovers(sandbox_id, state):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)


@asynccontextmanager
async def service_at(state: Path):
    async with running_service(DRIVER, state) as url, SandboxClient(url) as client:
        template = await client.build_template(TemplateSpec())
        yield client, Environment(template=template)


@asynccontextmanager
async def doomed_service(state: Path):
    """A service that the test may kill; yields its process and a client."""
    socket = state / "s"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "journeyman.sandbox.service", "--driver", DRIVER),
        *("--socket", str(socket), "--state", str(state)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    while not socket.exists():
        assert process.returncode is None and time.monotonic() < deadline
        await asyncio.sleep(0.05)
    async with SandboxClient(f"unix://{socket}") as client:
        yield process, client
    if process.returncode is None:
        process.terminate()
        await process.wait()


def test_a_service_killed_with_9_leaves_what_its_successor_finds_or_reaps(tmp_path):
    async def check():
        async with doomed_service(tmp_path) as (process, client):
            environment = Environment(template=await client.build_template(TemplateSpec()))
            running = await client.create(environment)
            asleep = await client.create(environment)
            await asleep.write_file("/kept", b"kept")
            await asleep.hibernate()
            process.kill()
            await process.wait()
            with pytest.raises(SandboxError):
                await running.exec(["true"])
        async with service_at(tmp_path) as (client, _):
            with pytest.raises(SandboxGone, match=f"{running.id} is gone.*service was killed"):
                await client.connect(running.id)
            await eventually_nothing_left(running.id, tmp_path / "sandboxes")
            found = await client.connect(asleep.id)
            assert found.info.state == "hibernated"
            assert await found.read_file("/kept") == b"kept"
            await found.close()
            await eventually_nothing_left(asleep.id, tmp_path / "sandboxes")

    asyncio.run(check())


def test_a_sandbox_of_a_client_that_is_gone_ends_with_its_lease(tmp_path):
    script = """
import asyncio, os, sys
from journeyman.sandbox.client import SandboxClient
from journeyman.types import Environment
async def main():
    client = SandboxClient(sys.argv[1])
    sandbox = await client.create(Environment(template=sys.argv[2]), lease_s=2)
    print(sandbox.id, flush=True)
    await sandbox.exec(["sleep", "60"])
asyncio.run(main())
"""

    async def check():
        async with service_at(tmp_path) as (client, environment):
            url = client._connection.url
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", script, url, environment.template),
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert process.stdout
            sandbox_id = (await process.stdout.readline()).decode().strip()
            await asyncio.sleep(0.5)
            process.kill()
            await process.wait()
            await eventually_nothing_left(sandbox_id, tmp_path / "sandboxes")
            with pytest.raises(SandboxGone, match="lease of 2 s ran out"):
                await client.connect(sandbox_id)

    asyncio.run(check())


def test_use_renews_a_lease(run, service, template):
    async def check():
        sandbox = await service.create(Environment(template=template), lease_s=1.5)
        for _ in range(5):
            await asyncio.sleep(0.7)
            assert (await sandbox.exec(["true"])).exit_code == 0
        # A call longer than the lease holds it too.
        assert (await sandbox.exec(["sleep", "2.5"])).exit_code == 0
        await sandbox.close()

    run(check())


def test_a_sandbox_that_dies_behind_our_back_is_named_not_replaced(run, service, template):
    async def check():
        sandbox = await service.create(Environment(template=template))
        running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.3)
        os.kill(engine_pid(sandbox.id), signal.SIGKILL)
        for call in (running, sandbox.exec(["true"]), service.connect(sandbox.id)):
            with pytest.raises(SandboxGone, match=sandbox.id):
                await call

    run(check())


def test_twenty_lives_leave_nothing(run, service, template):
    async def check():
        state = Path(service._connection.url.removeprefix("unix://")).parent / "state"
        sandboxes = await asyncio.gather(
            *(service.create(Environment(template=template)) for _ in range(10))
        )
        forks = [await sandbox.fork() for sandbox in sandboxes[:4]]
        await sandboxes[0].hibernate()
        await asyncio.gather(*(sandbox.close() for sandbox in [*sandboxes, *forks]))
        for sandbox in [*sandboxes, *forks]:
            await eventually_nothing_left(sandbox.id, state)

    run(check())


def test_an_unknown_template_creates_nothing_and_says_what_to_do(run, service):
    async def check():
        before = await service.list()
        for name in ("t-nosuch", "../../etc", "default"):
            with pytest.raises(UserError, match="template"):
                await service.create(Environment(template=name))
        assert await service.list() == before

    run(check())


def test_a_failing_layer_fails_the_template_with_its_output_and_leaves_nothing(run, service):
    async def check():
        spec = TemplateSpec(layers=(Run(command="echo reason >&2; exit 4"),))
        with pytest.raises(UserError, match=r"ended with 4:\n.*reason"):
            await service.build_template(spec)

    run(check())
    assert not list((home_dir() / "templates").glob(".building-*"))


def test_a_corrupt_snapshot_is_refused_before_it_runs(run, service):
    async def check():
        spec = TemplateSpec(layers=(Run(command=f"echo {time.time()} >/unique"),))
        template = await service.build_template(spec)
        sandbox = await service.create(Environment(template=template))
        await sandbox.close()
        snapshot = home_dir() / "templates" / template / "snapshot"
        files = [path for path in snapshot.iterdir() if path.name != "manifest.json"]
        # Files with more names belong to other snapshots too.
        fewest = min(path.stat().st_nlink for path in files)
        own = [path for path in files if path.stat().st_nlink == fewest]
        pages = max(own, key=lambda path: path.stat().st_size)
        with open(pages, "r+b") as file:  # noqa: ASYNC230
            file.seek(pages.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(SandboxError, match=rf"{pages.name}.*digest"):
            await service.create(Environment(template=template))
        return template

    import shutil

    shutil.rmtree(home_dir() / "templates" / run(check()))


def test_a_failed_resume_keeps_the_snapshot(run, service, template):
    async def check():
        sandbox = await service.create(Environment(template=template))
        await sandbox.write_file("/kept", b"kept")
        await sandbox.hibernate()
        state = Path(service._connection.url.removeprefix("unix://")).parent / "state"
        files = state.glob(f"sandboxes/{sandbox.id}/snapshots/*/*")
        pages = max(files, key=lambda path: path.stat().st_size)
        aside = pages.with_name("aside")
        pages.rename(aside)
        with pytest.raises(SandboxError, match=pages.name):
            await sandbox.resume()
        aside.rename(pages)
        assert await sandbox.read_file("/kept") == b"kept"
        await sandbox.close()

    run(check())


def test_the_service_ends_with_the_program_that_started_it(tmp_path):
    script = """
import asyncio, sys
from pathlib import Path
from journeyman.sandbox.client import SandboxClient, TemplateSpec
from journeyman.sandbox.service.launch import running_service
from journeyman.types import Environment
async def main():
    async with running_service(sys.argv[2], Path(sys.argv[1])) as url, SandboxClient(url) as client:
        template = await client.build_template(TemplateSpec())
        sandbox = await client.create(Environment(template=template))
        print(sandbox.id, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""

    before = sockets_left()

    async def check(number: int):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(tmp_path / str(number)), DRIVER),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout
        sandbox_id = (await process.stdout.readline()).decode().strip()
        process.send_signal(number)
        await process.wait()
        await eventually_nothing_left(sandbox_id, tmp_path / str(number) / "sandboxes")
        deadline = time.monotonic() + 60
        while engine_processes(str(tmp_path / str(number))):
            assert time.monotonic() < deadline, "the service outlives its parent"
            await asyncio.sleep(0.1)
        assert not [path for path in sockets_left() if path not in before]

    for number in (signal.SIGKILL, signal.SIGINT):
        asyncio.run(check(number))


def test_a_second_service_on_the_same_state_is_refused(tmp_path):
    async def check():
        async with service_at(tmp_path):
            with pytest.raises(UserError, match="another sandbox service"):
                async with service_at(tmp_path):
                    pass

    asyncio.run(check())


def test_without_the_token_nothing_is_answered(run, service):
    socket = service._connection.url.removeprefix("unix://")
    assert os.stat(socket + ".token").st_mode & 0o777 == 0o600

    async def check():
        with pytest.raises(UserError, match="refuses this token"):
            await SandboxClient(service._connection.url, token="wrong").list()
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            assert (await http.get("/v1/sandboxes")).status_code == 401
            assert (await http.get("/openapi.json")).status_code == 401

    run(check())


def test_auto_never_weakens_isolation_silently(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    async def check():
        async with running_service("auto"):
            pass

    with pytest.raises(UserError, match="runsc") as caught:
        asyncio.run(check())
    assert "make setup" in caught.value.cure and "--driver bubblewrap" in caught.value.cure


def test_the_hosts_environment_stays_out_of_guests(run, fresh, monkeypatch):
    async def check():
        async with fresh() as sandbox:
            names = (await sandbox.exec(["env"])).stdout.decode()
            assert {line.split("=")[0] for line in names.splitlines()} == {"PATH", "HOME", "LANG"}
            # The agent's own are out of reach, with all else of it.
            assert (await sandbox.exec(["cat", "/proc/1/environ"])).exit_code == 1

    run(check())


def test_no_network_but_loopback(run, fresh):
    async def check():
        async with fresh() as sandbox:
            probe = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
            result = await sandbox.exec(["python3", "-c", probe], timeout_s=10)
            assert result.exit_code == 1 and b"OSError" in result.stderr

    run(check())
