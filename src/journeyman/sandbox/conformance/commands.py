"""Commands: ends, streams, time-outs, trees."""

import asyncio
import hashlib
import os

from journeyman.sandbox.conformance.case import Bench, case, equal, require
from journeyman.sandbox.conformance.promises import AGENT

_FLOOD_BYTES = 50_000_000


@case("exit status, both streams, variables and working directory arrive")
async def a_command_tells_how_it_ended(bench: Bench) -> None:
    sandbox = await bench.create()
    script = 'echo out; echo err >&2; echo "$X"; pwd; exit 3'
    result = await sandbox.exec(["sh", "-c", script], cwd="/tmp", env={"X": "y"})
    equal((result.exit_code, result.signal, result.timed_out), (3, None, False))
    equal((result.stdout, result.stderr), (b"out\ny\n/tmp\n", b"err\n"))
    killed = await sandbox.exec(["sh", "-c", "kill -TERM $$"])
    equal((killed.exit_code, killed.signal), (None, 15))
    equal((await sandbox.exec(["no-such-program"])).exit_code, 127)
    equal((await sandbox.exec(["true"], cwd="/nowhere")).exit_code, 126)


@case("arguments of any bytes but NUL arrive as they are")
async def arguments_arrive_exactly(bench: Bench) -> None:
    sandbox = await bench.create()
    odd = ["a b", "", "'\"$(x)`#", "line\nbreak", "caf\u00e9", "raw\udcff\udc80", "-n"]
    result = await sandbox.exec(["printf", "%s\\0", *odd])
    equal(result.stdout, b"".join(os.fsencode(one) + b"\0" for one in odd))


@case("stdin is empty unless given; large input arrives whole")
async def stdin_arrives_whole(bench: Bench) -> None:
    sandbox = await bench.create()
    equal((await sandbox.exec(["cat"], timeout_s=10)).stdout, b"")
    data = os.urandom(1 << 20)
    result = await sandbox.exec(["sha256sum"], stdin=data)
    equal(result.stdout.split()[0].decode(), hashlib.sha256(data).hexdigest())


@case("a command out of time ends with its whole tree, detached children included")
async def a_time_out_ends_the_whole_tree(bench: Bench) -> None:
    sandbox = await bench.create()
    script = "(setsid sh -c 'exec env -i sleep 77' &) ; sleep 77 & echo begun; sleep 77"
    result = await sandbox.exec(["sh", "-c", script], timeout_s=2)
    equal((result.timed_out, result.exit_code, result.stdout), (True, None, b"begun\n"))
    left = await sandbox.exec(["pgrep", "-x", "sleep"])
    equal((left.exit_code, left.stdout), (1, b""))


@case("a command ends with its main process; its children in the background live on")
async def children_in_the_background_live_on(bench: Bench) -> None:
    sandbox = await bench.create()
    result = await sandbox.exec(["sh", "-c", "sleep 100 & echo done"], timeout_s=20)
    equal((result.timed_out, result.stdout), (False, b"done\n"))
    equal((await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code, 0)


@case("a flood of output is cut in the middle and counted")
async def a_flood_of_output_is_cut(bench: Bench) -> None:
    sandbox = await bench.create()
    script = f"echo first; head -c {_FLOOD_BYTES} /dev/zero; echo last"
    result = await sandbox.exec(["sh", "-c", script], kept_bytes=65_536, timeout_s=60)
    equal(result.exit_code, 0)
    require(result.stdout.startswith(b"first\n"), result.stdout[:20])
    require(result.stdout.endswith(b"last\n"), result.stdout[-20:])
    equal(result.dropped_bytes, _FLOOD_BYTES + 11 - 65_536)


@case("commands of one sandbox run side by side")
async def commands_run_side_by_side(bench: Bench) -> None:
    sandbox = await bench.create()
    wait = "while ! test -e /tmp/go; do sleep 0.05; done"
    waiting = [asyncio.create_task(sandbox.exec(["sh", "-c", wait])) for _ in range(3)]
    equal((await sandbox.exec(["touch", "/tmp/go"], timeout_s=20)).exit_code, 0)
    equal([result.exit_code for result in await asyncio.gather(*waiting)], [0, 0, 0])


@case("orphans are reaped")
async def orphans_leave_no_zombies(bench: Bench) -> None:
    sandbox = await bench.create()
    script = "import os\nfor _ in range(60):\n if not os.fork():\n  os.fork(); os._exit(0)"
    equal((await sandbox.exec(["python3", "-c", script])).exit_code, 0)
    await asyncio.sleep(0.5)
    listed = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null"])
    zombies = [line for line in listed.text.splitlines() if ") Z " in line]
    equal(zombies, [])


@case("root in the guest neither ends nor impersonates the agent", AGENT)
async def the_agent_is_out_of_reach(bench: Bench) -> None:
    sandbox = await bench.create()
    equal((await sandbox.exec(["id", "-u"])).stdout, b"0\n")
    for attack in ("kill -9 1", "kill -9 $PPID", "echo rubbish >/proc/1/fd/1", "umount /proc/1"):
        result = await sandbox.exec(["sh", "-c", attack], timeout_s=20)
        require(result.exit_code != 0, f"{attack!r} worked")
        equal((await sandbox.exec(["echo", "on"])).stdout, b"on\n")
