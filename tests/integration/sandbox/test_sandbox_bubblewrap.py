"""The weaker driver, for development: the same calls, without memory snapshots."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from journeyman.sandbox.client import Copy, Run, SandboxClient, SetEnv, TemplateSpec
from journeyman.sandbox.service.launch import running_service
from journeyman.types import Environment, SandboxError, UserError


@asynccontextmanager
async def bubblewrap():
    async with running_service("bubblewrap") as url, SandboxClient(url) as client:
        yield client


def test_the_whole_contract_but_memory():
    async def check():
        async with bubblewrap() as client:
            health = await client.health()
            assert health.driver == "bubblewrap" and "shares the host's kernel" in health.isolation
            spec = TemplateSpec(
                layers=(
                    Copy(path="/app/a.py", data=b"print('a')"),
                    SetEnv(name="X", value="1"),
                    Run(command="mkdir -p /usr/lib/new && echo $X >/usr/lib/new/x"),
                )
            )
            environment = Environment(template=await client.build_template(spec))
            one = await client.create(environment)
            assert (await one.exec(["python3", "/app/a.py"])).stdout == b"a\n"
            assert await one.read_file("/usr/lib/new/x") == b"1\n"
            script = "(setsid sleep 78 &) ; sleep 78 & echo begun; sleep 78"
            result = await one.exec(["sh", "-c", script], timeout_s=0.7)
            assert result.timed_out and result.stdout == b"begun\n"
            assert (await one.exec(["pgrep", "-x", "sleep"])).stdout == b""
            await one.write_file("/app/mine", b"1")
            two = await one.fork()
            await two.write_file("/app/mine", b"2")
            assert await one.read_file("/app/mine") == b"1"
            assert await two.read_file("/app/mine") == b"2"
            assert (await two.exec(["hostname"])).stdout.decode().strip() == two.id
            probe = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
            assert (await two.exec(["python3", "-c", probe])).exit_code == 1
            await one.close()
            await two.close()

    asyncio.run(check())


def test_what_it_cannot_do_it_says():
    async def check():
        async with bubblewrap() as client:
            sandbox = await client.create(
                Environment(template=await client.build_template(TemplateSpec()))
            )
            with pytest.raises(SandboxError, match="cannot hibernate"):
                await sandbox.hibernate()
            assert (await sandbox.exec(["true"])).exit_code == 0
            with pytest.raises(UserError, match="warm"):
                await client.build_template(TemplateSpec(warm=("sleep", "1")))

    asyncio.run(check())
