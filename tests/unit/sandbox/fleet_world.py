"""Nodes and a conductor of migrations that can be killed at any step, with real owners."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fleet_values import request

from journeyman.sandbox.fleet.copies import Copy, NodeCopies
from journeyman.sandbox.fleet.migration import finish_moves, migrate
from journeyman.sandbox.fleet.owner import Move
from journeyman.sandbox.fleet.sql_owners import SqlOwners
from journeyman.types.failure import SandboxError

CONDUCTOR = "conductor"


class Dead(BaseException):
    """The one who was about to do something is no more."""


@dataclass
class Machine:
    """A node. `disk` outlives it, `running` does not."""

    id: str
    up: bool = True
    life: int = 0
    """Raised by every kill: what a former life had begun does not go on."""
    copies: NodeCopies | None = None
    disk: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    """Content of the sandboxes that run: how often they were written to."""


class World:
    """`kills`: number of a step → who dies just there. Steps are counted over everybody."""

    def __init__(self, owners: SqlOwners, sandbox: str, kills: dict[int, str]) -> None:
        self.owners = owners
        self.sandbox = sandbox
        self.kills = kills
        self.steps = 0
        self.steps_of_migration = 0
        self.machines = {name: Machine(name) for name in "abc"}
        self.conductor_life = 0
        self.rewound = False
        self.written = 0
        """What a living copy must hold."""
        self.shuffle: Random | None = None
        self.about_to_commit, self.may_commit = asyncio.Event(), asyncio.Event()
        self.may_commit.set()

    # ---- set-up and use

    async def begin(self, on: str) -> None:
        await self.owners.claim(request(self.sandbox), on)
        disk = {"epoch": 1, "held": "", "content": 0, "ran": True}
        self.machines[on].disk[self.sandbox] = disk
        self.machines[on].running[self.sandbox] = 0

    def write(self) -> None:
        """Somebody uses the sandbox."""
        [machine] = [each for each in self.machines.values() if self.sandbox in each.running]
        machine.running[self.sandbox] += 1
        self.written = machine.running[self.sandbox]

    async def migrate(self, source: str, target: str) -> None:
        await migrate(
            Telling(self, CONDUCTOR), Side(self, source), Side(self, target), self.sandbox
        )

    async def recover(self) -> None:
        """Everybody who is down comes back, and does what is done after a start; again if
        somebody dies meanwhile."""
        while True:
            try:
                for machine in self.machines.values():
                    if not machine.up:
                        machine.up = True
                        await self.node(machine.id).recover()
                sides = {name: Side(self, name) for name in self.machines}
                owners = Telling(self, CONDUCTOR)
                await finish_moves(owners, await owners.unsettled(), sides)
                # What a fleet does now and then for every sandbox that it has on its list.
                for side in sides.values():
                    await side.settle(self.sandbox)
            except (Dead, ConnectionError):
                continue  # once more
            if all(each.up for each in self.machines.values()):
                return

    def node(self, name: str) -> NodeCopies:
        machine = self.machines[name]
        if machine.copies is None:
            engine = Engine(self, machine)
            machine.copies = NodeCopies(name, Telling(self, name), engine)
        return machine.copies

    # ---- steps

    def life(self, actor: str) -> int:
        return self.conductor_life if actor == CONDUCTOR else self.machines[actor].life

    async def step(self, actor: str, life: int) -> None:
        self.steps += 1
        if victim := self.kills.pop(self.steps, None):
            self._kill(victim)
        assert sum(self.sandbox in each.running for each in self.machines.values()) <= 1
        if self.shuffle:
            for _ in range(self.shuffle.randrange(3)):
                await asyncio.sleep(0)
        if life != self.life(actor):
            raise Dead

    def _kill(self, victim: str) -> None:
        if victim == CONDUCTOR:
            self.conductor_life += 1
            return
        machine = self.machines[victim]
        machine.up, machine.copies = False, None
        machine.life += 1
        content = machine.running.pop(self.sandbox, None)
        if content is not None:
            self.rewound = True
            self.written = machine.disk[self.sandbox]["content"]

    @asynccontextmanager
    async def around(self, actor: str, life: int) -> AsyncIterator[None]:
        """Death may come before the thing is done, or after, before anybody is told."""
        await self.step(actor, life)
        yield
        await self.step(actor, life)


class Engine:
    """Implements `CopyEngine`."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._machine = machine
        self._life = machine.life

    async def copies(self) -> list[Copy]:
        return [
            Copy(
                sandbox=name,
                epoch=disk["epoch"],
                held=disk["held"],
                behind=disk["ran"] and name not in self._machine.running,
            )
            for name, disk in self._machine.disk.items()
        ]

    async def stop(self, sandbox: str, move: str) -> None:
        async with self._world.around(self._machine.id, self._life):
            disk = self._machine.disk[sandbox]
            content = self._machine.running.pop(sandbox, disk["content"])
            disk.update(held=move, content=content, ran=False)

    async def fetch(self, move: Move) -> None:
        async with self._world.around(self._machine.id, self._life):
            source = self._world.machines[move.source]
            if not source.up:
                raise ConnectionError("the source does not answer")
            disk = source.disk[move.sandbox]
            if disk["held"] != move.id:
                raise SandboxError("the source gives away only what it holds for that move")
            assert move.sandbox not in source.running
            copied = {**disk, "epoch": move.epoch + 1}
            self._machine.disk[move.sandbox] = copied

    async def let_run(self, sandbox: str) -> None:
        async with self._world.around(self._machine.id, self._life):
            disk = self._machine.disk[sandbox]
            disk.update(held="", ran=True)
            self._machine.running.setdefault(sandbox, disk["content"])

    async def remove(self, sandbox: str) -> None:
        async with self._world.around(self._machine.id, self._life):
            self._machine.disk.pop(sandbox, None)
            self._machine.running.pop(sandbox, None)


class Side:
    """Implements `MigrationSide`: calls of the conductor over a network."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._life = world.conductor_life
        self.id = name

    async def prepare(self, move: Move) -> None:
        await self._call("prepare", move)

    async def receive(self, move: Move) -> None:
        await self._call("receive", move)

    async def settle(self, sandbox: str) -> None:
        await self._call("settle", sandbox)

    async def _call(self, what: str, argument: Any) -> None:
        await self._world.step(CONDUCTOR, self._life)
        if not self._world.machines[self.id].up:
            raise ConnectionError(f"node {self.id} does not answer")
        try:
            await getattr(self._world.node(self.id), what)(argument)
        except Dead:
            raise ConnectionError(f"node {self.id} went away") from None
        await self._world.step(CONDUCTOR, self._life)


class Telling:
    """The real record of owners, asked by somebody who may die before or after."""

    def __init__(self, world: World, actor: str) -> None:
        self._world = world
        self._actor = actor
        self._life = world.life(actor)

    def __getattr__(self, name: str) -> Any:
        async def asked(*arguments: Any) -> Any:
            if name == "commit_move":
                self._world.about_to_commit.set()
                await self._world.may_commit.wait()
            async with self._world.around(self._actor, self._life):
                return await getattr(self._world.owners, name)(*arguments)

        return asked
