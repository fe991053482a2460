"""Several nodes as one service, with real sandboxes: each node is a process with a state
directory of its own, and may be killed."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fleet_nodes import Fleet, running_fleet, until

from journeyman.sandbox.client import RemoteSandbox, Run, SandboxClient, TemplateSpec
from journeyman.sandbox.fleet.agent import join
from journeyman.sandbox.fleet.messages import FLEET_API
from journeyman.types import Environment
from journeyman.types.failure import SandboxError, SandboxGone, UserError

SMALL = TemplateSpec(memory_bytes=256 << 20)


async def node_of(fleet: Fleet, sandbox: RemoteSandbox) -> str:
    owner = await fleet.owners.owner(sandbox.id)
    assert owner is not None
    return owner.node


async def until_lost(fleet: Fleet, node: str) -> None:
    await until(lambda: fleet.scheduler.fleet.node(node).node.state == "lost")


async def _is_empty(client: SandboxClient) -> bool:
    return not await client.list()


async def _goes_on(fleet: Fleet, sandbox: RemoteSandbox, node: str) -> bool:
    row = await fleet.owners.one(sandbox.id)
    return row is not None and row.owner.node == node and row.local != ""


async def two_on_each(
    fleet: Fleet, client: SandboxClient, template: str
) -> dict[str, list[RemoteSandbox]]:
    found: dict[str, list[RemoteSandbox]] = {name: [] for name in fleet.nodes}
    while min(map(len, found.values())) < 2:
        sandbox = await client.create(Environment(template=template))
        found[await node_of(fleet, sandbox)].append(sandbox)
        assert sum(map(len, found.values())) <= 12
    return found


def test_a_fleet_is_used_like_one_service(tmp_path: Path) -> None:
    async def use() -> None:
        async with running_fleet(tmp_path, "a", "b") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandboxes = await two_on_each(fleet, client, template)
            for sandbox in [*sandboxes["a"], *sandboxes["b"]]:
                await sandbox.write_file("/root/name", sandbox.id.encode())
            for sandbox in [*sandboxes["a"], *sandboxes["b"]]:
                result = await sandbox.exec(["cat", "/root/name"])
                assert result.stdout == sandbox.id.encode()
            listed = {info.id for info in await client.list()}
            assert listed == {sandbox.id for both in sandboxes.values() for sandbox in both}

            parent = sandboxes["a"][0]
            child = await parent.fork()
            assert await node_of(fleet, child) == "a"
            assert await child.read_file("/root/name") == parent.id.encode()
            await parent.write_file("/root/name", b"changed")
            assert await child.read_file("/root/name") == parent.id.encode()

            await parent.hibernate()
            assert {info.id: info.state for info in await client.list()}[parent.id] == "hibernated"
            assert await parent.read_file("/root/name") == b"changed"
            with pytest.raises(FileNotFoundError):
                await parent.read_file("/root/absent")

            await child.close()
            with pytest.raises(SandboxGone):
                await child.exec(["true"])
            assert child.id not in {info.id for info in await client.list()}

    asyncio.run(use())


def test_a_large_file_goes_through_the_manager_whole(tmp_path: Path) -> None:
    async def use() -> None:
        async with running_fleet(tmp_path, "a") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandbox = await client.create(Environment(template=template))
            data = bytes(range(256)) * (80 << 10)
            await sandbox.write_file("/root/large", data)
            assert await sandbox.read_file("/root/large") == data

    asyncio.run(use())


def test_tenants_of_a_fleet_do_not_see_each_other(tmp_path: Path) -> None:
    async def use() -> None:
        async with (
            running_fleet(tmp_path, "a") as fleet,
            fleet.client("one") as one,
            fleet.client("two") as two,
        ):
            template = await one.build_template(SMALL)
            sandbox = await one.create(Environment(template=template))
            assert await two.list() == []
            with pytest.raises(SandboxGone) as foreign:
                await two.connect(sandbox.id)
            with pytest.raises(SandboxGone) as unknown:
                await two.connect("sb-0")
            assert str(foreign.value).replace(sandbox.id, "sb-0") == str(unknown.value)
            stolen = RemoteSandbox(two.connection, sandbox.info)
            for call in (stolen.exec(["true"]), stolen.fork(), stolen.hibernate()):
                with pytest.raises(SandboxGone):
                    await call
            await stolen.close()
            assert (await sandbox.exec(["true"])).exit_code == 0

    asyncio.run(use())


def test_only_nodes_and_tenants_are_let_in(tmp_path: Path) -> None:
    async def use() -> None:
        async with running_fleet(tmp_path, "a") as fleet:
            tenant = {"Authorization": f"Bearer {fleet.tokens.add_tenant('t')}"}
            ticket = fleet.tokens.add_ticket()
            async with httpx.AsyncClient(base_url=fleet.url) as http:

                async def status(path: str, headers: dict[str, str], body: object = None) -> int:
                    answer = await http.post(path, json=body or {}, headers=headers)
                    return answer.status_code

                beat = {
                    "age_s": 0, "cpus_used": 0, "memory_used_bytes": 0, "disk_used_bytes": 0,
                    "snapshots": [], "sandboxes": {},
                }  # fmt: skip
                assert await status("/v1/sandboxes", {}) == 401
                assert await status("/v1/sandboxes", {"Authorization": "Bearer x"}) == 401
                assert await status("/v1/sandboxes", {"Authorization": f"Bearer {ticket}"}) == 401
                assert await status(f"{FLEET_API}/beat", tenant, beat) == 403
                page = {**tenant, "Origin": "http://evil.example"}
                assert await status("/v1/sandboxes", page, {"template": "t-1"}) == 403
            with pytest.raises(SandboxError, match="404"):
                await _post_as_node(fleet, "no-such-route")
            with pytest.raises(UserError, match="ticket is void"):
                await join(fleet.url, "nonsense", "b")

    async def _post_as_node(fleet: Fleet, what: str) -> None:
        await fleet.nodes["a"].agent._post(what, "{}")

    asyncio.run(use())


def test_a_killed_nodes_sandboxes_are_reported_lost(tmp_path: Path) -> None:
    async def lose() -> None:
        async with running_fleet(tmp_path, "a", "b") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandboxes = await two_on_each(fleet, client, template)
            await fleet.nodes["a"].kill()
            with pytest.raises(SandboxError):
                await sandboxes["a"][0].exec(["true"])
            await until_lost(fleet, "a")
            await fleet.manager.tick()
            for sandbox in sandboxes["a"]:
                # The template is there on b: a fresh sandbox would answer.
                with pytest.raises(SandboxGone, match="node a was lost, and no snapshot of it"):
                    await sandbox.exec(["true"])
            for sandbox in sandboxes["b"]:
                assert (await sandbox.exec(["true"])).exit_code == 0
            new = await client.create(Environment(template=template))
            assert await node_of(fleet, new) == "b"

    asyncio.run(lose())


def test_a_killed_nodes_sandbox_goes_on_from_a_snapshot_held_elsewhere(tmp_path: Path) -> None:
    """Its snapshot is a template here: a state that both nodes can start from."""

    async def lose() -> None:
        async with running_fleet(tmp_path, "a", "b") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            saved = await client.build_template(
                TemplateSpec(base=template, layers=(Run(command="echo saved > /root/state"),))
            )
            sandboxes = await two_on_each(fleet, client, template)
            kept, other = sandboxes["a"][:2]
            await fleet.owners.saved(kept.id, 1, saved)
            fleet.scheduler.fleet.snapshot_arrived(saved, "b", 0.0)
            fleet.nodes["b"].snapshots.add(saved)
            await fleet.nodes["a"].kill()
            await until_lost(fleet, "a")
            await until(lambda: _goes_on(fleet, kept, "b"))
            owner = await fleet.owners.owner(kept.id)
            assert owner is not None
            assert (owner.epoch, owner.generation) == (2, 2), "nobody takes it for the old one"
            assert await kept.read_file("/root/state") == b"saved\n"
            with pytest.raises(SandboxGone, match="no snapshot of it is left"):
                await other.exec(["true"])

    asyncio.run(lose())


def test_while_the_manager_is_away_sandboxes_stand_still_and_then_go_on(tmp_path: Path) -> None:
    async def leave() -> None:
        async with running_fleet(tmp_path, "a") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandbox = await client.create(Environment(template=template))
            await sandbox.exec(["sh", "-c", "echo kept > /root/file"])
            await fleet.stop_manager()
            node = fleet.nodes["a"]
            await until(lambda: node.agent.fenced)
            assert [info.state for info in await node.sandboxes.list()] == ["hibernated"]
            await fleet.start_manager()
            await until(lambda: not node.agent.fenced)
            # The manager knows it from its database.
            assert await sandbox.read_file("/root/file") == b"kept\n"

    asyncio.run(leave())


def test_a_node_that_was_only_cut_off_gives_up_what_others_have(tmp_path: Path) -> None:
    """Cut off for longer than the manager waits, it comes back with a copy of its sandbox. The
    copy stood still all the while, and is ended."""

    async def cut_off() -> None:
        async with running_fleet(tmp_path, "a") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandbox = await client.create(Environment(template=template))
            node = fleet.nodes["a"]
            address = node.agent._control._base_url
            node.agent._control._base_url = httpx.URL("http://127.0.0.1:1")
            await until(lambda: node.agent.fenced)
            assert fleet.scheduler.fleet.node("a").node.state == "ready", "stopped before lost"
            assert [info.state for info in await node.sandboxes.list()] == ["hibernated"]
            await until_lost(fleet, "a")
            await fleet.manager.tick()
            node.agent._control._base_url = address
            await until(lambda: _is_empty(node.sandboxes))
            with pytest.raises(SandboxGone, match="node a was lost"):
                await sandbox.exec(["true"])
            again = await client.create(Environment(template=template))
            assert await node_of(fleet, again) == "a"

    asyncio.run(cut_off())


def test_what_ends_on_its_node_ends_in_the_fleet(tmp_path: Path) -> None:
    """A lease runs out without the manager being asked."""

    async def end() -> None:
        async with running_fleet(tmp_path, "a") as fleet, fleet.client("t") as client:
            template = await client.build_template(SMALL)
            sandbox = await client.create(Environment(template=template), lease_s=1.0)
            assert fleet.scheduler.fleet.reservation(sandbox.id) is not None
            await until(lambda: _is_empty(client))
            assert fleet.scheduler.fleet.reservation(sandbox.id) is None
            with pytest.raises(SandboxGone):
                await sandbox.exec(["true"])

    asyncio.run(end())


def test_a_full_fleet_says_what_is_short(tmp_path: Path) -> None:
    async def fill() -> None:
        async with running_fleet(tmp_path) as fleet, fleet.client("t") as client:
            await fleet.add_node("a", memory_gib=1)
            template = await client.build_template(TemplateSpec(memory_bytes=600 << 20))
            first = await client.create(Environment(template=template))
            with pytest.raises(SandboxError, match="short of memory"):
                await client.create(Environment(template=template))
            await first.close()
            await client.create(Environment(template=template))
            assert [each.memory_bytes for each in fleet.manager.refused] == [600 << 20]

    asyncio.run(fill())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_fleet_from_the_command_line(tmp_path: Path) -> None:
    """Manager and node as their own commands, over the network: a ticket, a tenant's token."""
    store = ["--store", f"sqlite:///{tmp_path / 'fleet.db'}"]
    port, node_port = _free_port(), _free_port()
    url, address = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{node_port}"

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "journeyman.cli", "sandbox", "fleet", *words]

    async def use(token: str) -> None:
        async with SandboxClient(url, token) as client:
            await until(lambda: _has_room(client))
            template = await client.build_template(SMALL)
            sandbox = await client.create(Environment(template=template))
            await sandbox.write_file("/root/file", b"\0\xff" * 100_000)
            assert await sandbox.read_file("/root/file") == b"\0\xff" * 100_000
            result = await sandbox.exec(["sh", "-c", "echo $((6 * 7))"])
            assert result.stdout == b"42\n"
            await sandbox.close()
        # The node's own door is closed to everybody but its manager.
        with pytest.raises(UserError, match="token is not known"):
            async with SandboxClient(address, token) as direct:
                await direct.list()

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ticket = tmp_path / "ticket"
    with contextlib.ExitStack() as running:

        def start(*words: str) -> None:
            log = running.enter_context((tmp_path / f"{words[0]}.log").open("wb"))
            process = subprocess.Popen(command(*words), env=environment, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)

        def output(*words: str) -> str:
            return subprocess.check_output(command(*words), env=environment, text=True).strip()

        start("serve", "--port", str(port), *store)
        ticket.write_text(output("ticket", *store))
        tenant = output("tenant", "me", *store)
        asyncio.run(_until_open(port))
        listen = ["--address", address, "--host", "127.0.0.1", "--port", str(node_port)]
        state = ["--state", str(tmp_path / "node"), "--ticket-file", str(ticket)]
        start("join", url, "--node", "n1", *listen, *state)
        asyncio.run(use(tenant))


async def _until_open(port: int) -> None:
    def is_open() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await until(is_open)


async def _has_room(client: SandboxClient) -> bool:
    try:
        await client.build_template(SMALL)
    except SandboxError:
        return False
    return True
