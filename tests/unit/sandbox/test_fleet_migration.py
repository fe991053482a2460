"""A migration that is killed anywhere leaves exactly one live copy."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest
from fleet_values import request
from fleet_world import CONDUCTOR, Dead, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from journeyman.sandbox.fleet.migration import MigrationFailed
from journeyman.sandbox.fleet.owner import Owner, OwnershipError
from journeyman.sandbox.fleet.sql_owners import SqlOwners
from journeyman.types.failure import SandboxError, UserError

_names = count()


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlOwners]:
    made = SqlOwners(f"sqlite:///{tmp_path_factory.mktemp('fleet') / 'fleet.db'}")
    # A power cut is not what is tested here, and waiting for the disk would take most of the time.
    event.listen(made.database.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF"))
    made.database.engine.dispose()
    yield made
    made.close()


async def written(owners: SqlOwners, kills: dict[int, str]) -> World:
    """A sandbox on node a that was written to three times since its last snapshot."""
    world = World(owners, f"s{next(_names)}", kills)
    await world.begin("a")
    for _ in range(3):
        world.write()
    return world


async def about_to_commit(owners: SqlOwners) -> tuple[World, asyncio.Task[None]]:
    """The target has its copy; the commit waits for `may_commit`."""
    world = await written(owners, {})
    world.may_commit.clear()
    task = asyncio.create_task(world.migrate("a", "b"))
    await world.about_to_commit.wait()
    assert world.sandbox in world.machines["b"].disk
    return world, task


async def moved(owners: SqlOwners, kills: dict[int, str]) -> tuple[World, Owner]:
    """Written to three times, migrated from a to b while somebody is killed, recovered."""
    world = await written(owners, dict(kills))
    with suppress(Dead, SandboxError, ConnectionError):
        await world.migrate("a", "b")
    world.steps_of_migration = world.steps
    await world.recover()
    owner = await owners.owner(world.sandbox)
    assert owner is not None
    return world, owner


def assert_one_live_copy(world: World, owner: Owner) -> None:
    assert owner.state == "owned"
    for name, machine in world.machines.items():
        owns = name == owner.node
        assert (world.sandbox in machine.running) == owns
        assert (world.sandbox in machine.disk) == owns, "no copy is left elsewhere"
    disk = world.machines[owner.node].disk[world.sandbox]
    assert (disk["epoch"], disk["held"]) == (owner.epoch, "")
    # Nothing is lost, or it is said: the generation is a later one exactly then.
    assert world.machines[owner.node].running[world.sandbox] == world.written
    assert (owner.generation > 1) == world.rewound
    assert world.rewound or world.written == 3


def num_steps(owners: SqlOwners) -> int:
    world, owner = asyncio.run(moved(owners, {}))
    assert (owner.node, owner.epoch, owner.generation) == ("b", 2, 1)
    assert_one_live_copy(world, owner)
    return world.steps_of_migration


@pytest.mark.parametrize("victim", ["a", "b", CONDUCTOR])
def test_killed_at_any_step_exactly_one_copy_lives(owners: SqlOwners, victim: str) -> None:
    ends = set()
    for step in range(1, num_steps(owners) + 1):
        world, owner = asyncio.run(moved(owners, {step: victim}))
        assert world.kills == {}, "the kill took place"
        assert_one_live_copy(world, owner)
        ends.add(owner.node)
    assert ends == {"a", "b"}, "early kills leave it at the source, late ones at the target"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(1, 120), st.sampled_from(["a", "b", CONDUCTOR]), max_size=6))
def test_killed_again_while_recovering_too(owners: SqlOwners, kills: dict[int, str]) -> None:
    world, owner = asyncio.run(moved(owners, kills))
    assert_one_live_copy(world, owner)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 10_000),
    st.dictionaries(st.integers(1, 120), st.sampled_from(["a", "b", "c"]), max_size=2),
)
def test_conductors_that_do_not_know_of_each_other(
    owners: SqlOwners, seed: int, kills: dict[int, str]
) -> None:
    """One moves it to b, one to c, two believe that both are dead and clear up."""

    async def all_at_once() -> tuple[World, Owner]:
        world = await written(owners, dict(kills))
        world.shuffle = Random(seed)
        await asyncio.gather(
            world.migrate("a", "b"),
            world.migrate("a", "c"),
            world.recover(),
            world.recover(),
            return_exceptions=True,
        )
        world.shuffle = None
        await world.recover()
        owner = await owners.owner(world.sandbox)
        assert owner is not None
        return world, owner

    world, owner = asyncio.run(all_at_once())
    assert_one_live_copy(world, owner)


def test_cancelled_before_the_commit_the_source_runs_on(owners: SqlOwners) -> None:
    async def cancelled() -> None:
        world, task = await about_to_commit(owners)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        owner = await owners.owner(world.sandbox)
        assert owner is not None
        assert owner.node == "a"
        assert_one_live_copy(world, owner)

    asyncio.run(cancelled())


def test_a_sandbox_that_ends_while_it_moves_is_nowhere(owners: SqlOwners) -> None:
    async def ended() -> World:
        world, task = await about_to_commit(owners)
        await owners.forget(world.sandbox)
        world.may_commit.set()
        with pytest.raises(MigrationFailed, match="It has ended meanwhile"):
            await task
        return world

    world = asyncio.run(ended())
    assert [each.disk | each.running for each in world.machines.values()] == [{}, {}, {}]


# ---- the record


def test_a_move_that_was_called_off_cannot_be_committed(owners: SqlOwners) -> None:
    async def race() -> None:
        name = f"s{next(_names)}"
        await owners.claim(request(name), "a")
        move = await owners.begin_move(name, 1, "b")
        assert (await owners.settle_move(move)).node == "a"
        with pytest.raises(OwnershipError, match="is over: it is owned by node a in epoch 1"):
            await owners.commit_move(move)
        # A second move is another one, whatever remembers the first.
        again = await owners.begin_move(name, 1, "b")
        with pytest.raises(OwnershipError, match="is over"):
            await owners.commit_move(move)
        assert (await owners.commit_move(again)).epoch == 2
        assert (await owners.settle_move(again)).node == "b"

    asyncio.run(race())


def test_whoever_has_an_old_epoch_changes_nothing(owners: SqlOwners) -> None:
    async def late() -> None:
        name = f"s{next(_names)}"
        await owners.claim(request(name), "a")
        owner = await owners.rehome(name, 1, "b")
        assert (owner.node, owner.epoch, owner.generation) == ("b", 2, 2)
        for change in (
            owners.begin_move(name, 1, "c"),
            owners.rewind(name, 1),
            owners.give_up(name, 1, "late"),
            owners.rehome(name, 1, "c"),
            owners.saved(name, 1, "snapshot"),
        ):
            with pytest.raises(OwnershipError, match="not owned in epoch 1: it is owned by node b"):
                await change
        with pytest.raises(OwnershipError, match="has an owner already"):
            await owners.claim(request(name), "c")
        assert await owners.owner(name) == owner

    asyncio.run(late())


def test_what_is_lost_stays_lost(owners: SqlOwners) -> None:
    async def lost() -> None:
        name = f"s{next(_names)}"
        await owners.claim(request(name), "a")
        await owners.give_up(name, 1, "its node is gone")
        with pytest.raises(OwnershipError, match="it was lost: its node is gone"):
            await owners.rehome(name, 1, "b")

    asyncio.run(lost())


def test_the_record_outlives_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"

    async def first() -> None:
        owners = SqlOwners(url)
        await owners.claim(request("s", tenant="t"), "a")
        await owners.saved("s", 1, "snapshot-1")
        await owners.begin_move("s", 1, "b")
        owners.close()

    async def second() -> None:
        owners = SqlOwners(url)
        [kept] = await owners.kept(tenant="t")
        assert (kept.owner.node, kept.snapshot, kept.request) == (
            "a",
            "snapshot-1",
            request("s", tenant="t"),
        )
        assert [move.target for move in await owners.unsettled()] == ["b"]
        await owners.forget("s")
        await owners.forget("s")
        assert await owners.kept() == []
        owners.close()

    asyncio.run(first())
    asyncio.run(second())


def test_fleet_and_store_may_share_a_database(tmp_path: Path) -> None:
    from journeyman.store import Store

    url = f"sqlite:///{tmp_path / 'both.db'}"
    SqlOwners(url).close()
    store = Store(url)
    store.create_run("r", {})
    store.close()
    owners = SqlOwners(url)
    asyncio.run(owners.claim(request("s"), "a"))
    owners.close()
    with pytest.raises(UserError, match="not supported"):
        SqlOwners("mysql://host/db")
