"""Forks: the past in common, and nothing else."""

import asyncio
import time

from journeyman.sandbox.conformance.case import Bench, case, equal, require
from journeyman.sandbox.conformance.guests import (
    DIFFER_IN_FORKS,
    HOLDER,
    digest_of_holder,
    identity,
    start_holder,
)
from journeyman.sandbox.conformance.promises import MEMORY

_FORKS = 20


@case("twenty forks of one snapshot answer and differ in entropy and identity")
async def twenty_forks_differ(bench: Bench) -> None:
    began = time.time()
    forks = await asyncio.gather(*(bench.create() for _ in range(_FORKS)))
    seen = await asyncio.gather(*(identity(fork) for fork in forks))
    ended = time.time()
    for key in DIFFER_IN_FORKS:
        equal((key, len({one[key] for one in seen})), (key, _FORKS))
    for one in seen:
        require(began - 0.1 < one["time"] < ended + 0.1, f"a clock says {one['time']}")


@case("a fork shares its parent's past; afterwards neither sees the other's changes")
async def forks_go_apart(bench: Bench) -> None:
    parent = await bench.create()
    await parent.write_file("/root/common", b"past")
    child = bench.own(await parent.fork())
    grandchild = bench.own(await child.fork())
    family = (parent, child, grandchild)
    for member in family:
        await member.write_file("/root/mine", member.id.encode())
    for member in family:
        equal(await member.read_file("/root/mine"), member.id.encode())
        equal(await member.read_file("/root/common"), b"past")
        equal((await member.exec(["hostname"])).stdout.decode().strip(), member.id)


@case("processes and memory go on in a fork, in its fork, and in the parent", MEMORY)
async def memory_goes_on_in_forks(bench: Bench) -> None:
    parent = await bench.create({"/root/holder.py": HOLDER})
    digest = await start_holder(parent)
    child = bench.own(await parent.fork())
    grandchild = bench.own(await child.fork())
    for member in (grandchild, parent, child):
        equal(await digest_of_holder(member), digest)


@case("a hibernated parent can be forked and stays hibernated", MEMORY)
async def a_hibernated_parent_can_be_forked(bench: Bench) -> None:
    parent = await bench.create()
    await parent.write_file("/root/x", b"1")
    await parent.hibernate()
    forks = await asyncio.gather(parent.fork(), parent.fork())
    first, second = (bench.own(fork) for fork in forks)
    equal((await bench.client.connect(parent.id)).info.state, "hibernated")
    await first.write_file("/root/x", b"2")
    equal(await second.read_file("/root/x"), b"1")
    equal(await parent.read_file("/root/x"), b"1")


@case("a command that runs while its sandbox forks is not disturbed")
async def a_running_command_is_not_disturbed(bench: Bench) -> None:
    parent = await bench.create()
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.2; done"
    running = asyncio.create_task(parent.exec(["sh", "-c", script]))
    await asyncio.sleep(0.3)
    child = bench.own(await parent.fork())
    equal((await child.exec(["echo", "hi"])).stdout, b"hi\n")
    equal((await running).stdout, b"".join(b"%d\n" % i for i in range(1, 11)))
