"""What the autoscaler decides is done: hosts start, drain and end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_values import node, request

from journeyman.sandbox.fleet.autoscale import Autoscaler, ScaleSettings
from journeyman.sandbox.fleet.manager import FleetManager
from journeyman.sandbox.fleet.provider import Host, HostShortage
from journeyman.sandbox.fleet.scaling import Scaling
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.sql_owners import SqlOwners
from journeyman.sandbox.fleet.tokens import Tokens
from journeyman.types.failure import SandboxError, UserError


class Cloud:
    """A provider that has so many hosts to give, and ends them unless told not to."""

    def __init__(self, stock: int) -> None:
        self.stock = stock
        self.running: dict[str, Host] = {}
        self.refuses_to_end = False

    def hosts(self) -> list[Host]:
        return list(self.running.values())

    def start(self, count: int) -> list[Host]:
        if not self.stock:
            raise HostShortage("sold out")
        started = [
            Host(id=f"h{self.stock - i}", state="running", age_s=0.0)
            for i in range(min(count, self.stock))
        ]
        self.stock -= len(started)
        self.running |= {host.id: host for host in started}
        return started

    def terminate(self, host_id: str) -> None:
        if self.refuses_to_end:
            raise SandboxError("not now")
        if host_id not in self.running:
            raise UserError(f"{host_id} is not ours")
        del self.running[host_id]


class World:
    def __init__(self, owners: SqlOwners, stock: int) -> None:
        self.now = 0.0
        self.cloud = Cloud(stock)
        self.scheduler = Scheduler()
        self.tokens = Tokens(owners.database)
        self.manager = FleetManager(owners, self.scheduler)
        self.scaling = Scaling(
            self.manager,
            self.scheduler.fleet,
            self.tokens,
            self.cloud,
            Autoscaler(ScaleSettings(least=1, most=3, calm_s=60.0)),
            lambda: self.now,
        )

    def tick(self) -> None:
        asyncio.run(self.scaling.tick())

    def join_all(self) -> None:
        """Every host that runs becomes a node."""
        for name in self.cloud.running.keys() - self.scheduler.fleet.nodes.keys():
            self.scheduler.fleet.put_node(node(name), self.now)


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[SqlOwners]:
    made = SqlOwners(f"sqlite:///{tmp_path / 'fleet.db'}")
    yield made
    made.close()


def test_a_fleet_grows_with_what_is_refused_and_shrinks_when_it_is_calm(owners: SqlOwners) -> None:
    world = World(owners, stock=9)
    world.tick()
    assert world.cloud.running.keys() == {"h9"}
    world.join_all()
    world.manager.refused.extend(request(f"r{i}", memory=40) for i in range(2))
    world.tick()
    assert len(world.cloud.running) == 3
    assert not world.manager.refused, "what was answered with hosts is not answered again"
    world.join_all()
    world.tick()
    assert len(world.cloud.running) == 3
    for world.now in (100.0, 200.0, 300.0, 400.0, 500.0):
        world.tick()
    assert len(world.cloud.running) == 1
    assert world.scheduler.fleet.nodes.keys() == world.cloud.running.keys()


def test_what_the_provider_does_not_have_is_asked_for_again(owners: SqlOwners) -> None:
    world = World(owners, stock=0)
    world.tick()
    world.cloud.stock = 1
    world.tick()
    assert len(world.cloud.running) == 1


def test_a_host_that_could_not_be_ended_stays_a_node_of_the_fleet(owners: SqlOwners) -> None:
    world = World(owners, stock=2)
    world.tick()
    [name] = world.cloud.running
    token = world.tokens.redeem(world.tokens.add_ticket(), name)
    world.scheduler.fleet.put_node(node(name, state="draining"), 0.0)
    world.cloud.refuses_to_end = True
    world.tick()
    assert world.tokens.bearer(token) is not None
    assert name in world.scheduler.fleet.nodes
    world.cloud.refuses_to_end = False
    world.tick()
    assert world.tokens.bearer(token) is None
    assert name not in world.scheduler.fleet.nodes
