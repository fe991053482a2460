"""Commands in a real sandbox: ends, time-outs, trees, output."""

import asyncio
import time

import pytest

from journeyman.sandbox.client import TemplateSpec
from journeyman.types import Environment


def test_exit_code_streams_and_environment(run, fresh):
    async def check():
        async with fresh() as sandbox:
            script = 'echo out; echo err >&2; echo "$X $HOME"; pwd; exit 3'
            result = await sandbox.exec(["sh", "-c", script], cwd="/app", env={"X": "y"})
            assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
            assert result.stdout == b"out\ny /root\n/app\n"
            assert result.stderr == b"err\n"

    run(check())


def test_timeout_reports_output_so_far_and_kills_the_whole_tree(run, fresh):
    async def check():
        async with fresh() as sandbox:
            script = "(setsid sh -c 'exec env -i sleep 77' &) ; sleep 77 & echo begun; sleep 77"
            began = time.monotonic()
            result = await sandbox.exec(["sh", "-c", script], timeout_s=1)
            assert time.monotonic() - began < 5
            assert result.timed_out and result.exit_code is None
            assert result.stdout == b"begun\n"
            left = await sandbox.exec(["pgrep", "-x", "sleep"])
            assert left.stdout == b"" and left.exit_code == 1

    run(check())


def test_returns_when_the_command_ends_not_when_its_children_close_the_pipes(run, fresh):
    async def check():
        async with fresh() as sandbox:
            began = time.monotonic()
            result = await sandbox.exec(["sh", "-c", "sleep 100 & echo done"])
            assert time.monotonic() - began < 5
            assert result.stdout == b"done\n"
            assert (await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code == 0

    run(check())


def test_a_missing_program_and_a_missing_directory_are_the_commands_failure(run, fresh):
    async def check():
        async with fresh() as sandbox:
            missing = await sandbox.exec(["no-such-program"])
            assert missing.exit_code == 127 and b"no-such-program" in missing.stderr
            nowhere = await sandbox.exec(["true"], cwd="/nowhere")
            assert nowhere.exit_code == 126 and b"/nowhere" in nowhere.stderr

    run(check())


def test_stdin_is_empty_unless_given_and_large_input_arrives_whole(run, fresh):
    async def check():
        async with fresh() as sandbox:
            assert (await sandbox.exec(["cat"], timeout_s=5)).stdout == b""
            data = bytes(range(256)) * 8192
            result = await sandbox.exec(["sha256sum"], stdin=data)
            import hashlib

            assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
            ignored = await sandbox.exec(["true"], stdin=data)
            assert ignored.exit_code == 0

    run(check())


def test_arguments_arrive_exactly(run, fresh):
    async def check():
        async with fresh() as sandbox:
            odd = ["a b", "", "'\"$(x)`#", "line\nbreak", "caf\u00e9", "raw\udcff\udc80", "-n"]
            result = await sandbox.exec(["printf", "%s\\0", *odd])
            import os

            assert result.stdout == b"".join(os.fsencode(one) + b"\0" for one in odd)

    run(check())


def test_a_flood_of_output_is_cut_in_the_middle_and_counted(run, fresh):
    async def check():
        async with fresh() as sandbox:
            script = "echo first; head -c 200000000 /dev/zero; echo last"
            result = await sandbox.exec(["sh", "-c", script], kept_bytes=65536, timeout_s=60)
            assert result.exit_code == 0
            assert result.stdout.startswith(b"first\n") and result.stdout.endswith(b"last\n")
            assert len(result.stdout) < 65536 + 100
            assert result.dropped_bytes == 200000000 + 11 - 65536
            assert (await sandbox.exec(["echo", "still"])).stdout == b"still\n"

    run(check())


def test_commands_run_side_by_side(run, fresh):
    async def check():
        async with fresh() as sandbox:
            began = time.monotonic()
            sleeps = [sandbox.exec(["sleep", "1"]) for _ in range(5)]
            results = await asyncio.gather(*sleeps)
            assert time.monotonic() - began < 4
            assert [result.exit_code for result in results] == [0] * 5

    run(check())


def test_a_memory_hog_and_a_disk_filler_are_ended_and_the_sandbox_goes_on(run, service):
    async def check():
        spec = TemplateSpec(memory_bytes=192 << 20)
        template = await service.build_template(spec)
        sandbox = await service.create(Environment(template=template))
        hog = "x = []\nwhile True: x.append(b'x' * (8 << 20))"
        result = await sandbox.exec(["python3", "-c", hog], timeout_s=60)
        # Refused by its own limit, or ended for the sandbox's sake, whichever came first.
        assert (result.exit_code, result.signal) in ((1, None), (None, 9))
        assert not result.timed_out
        filled = await sandbox.exec(["sh", "-c", "exec cat /dev/zero >/root/fill"], timeout_s=200)
        # Files are memory (gvisor), or on a disk that is full at some time (qemu).
        assert filled.signal == 9 or b"No space left" in filled.stderr
        assert (await sandbox.exec(["rm", "/root/fill"])).exit_code == 0
        assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        await sandbox.close()

    run(check())


@pytest.mark.parametrize(
    "attack",
    [
        "kill -9 1",
        "kill -STOP 1",
        "kill -9 $PPID",
        "kill -9 -1",
        "echo rubbish >/proc/1/fd/1",
        "head -c 1 /proc/1/fd/0",
        "umount /proc/1; ls /proc/1/fd | grep .",
        "umount /sys/fs/cgroup",
    ],
)
def test_root_in_the_guest_cannot_reach_the_agent(run, shared, attack):
    async def check():
        assert (await shared.exec(["id", "-u"])).stdout == b"0\n"
        result = await shared.exec(["sh", "-c", attack], timeout_s=10)
        # `kill -9 -1` ends whatever else root runs, which it may.
        assert result.exit_code != 0 or result.signal == 9 or attack == "kill -9 -1"
        assert (await shared.exec(["echo", "on"])).stdout == b"on\n"

    run(check())


def test_orphans_leave_a_clean_process_table(run, fresh):
    async def check():
        async with fresh() as sandbox:
            script = "import os\nfor _ in range(60):\n if not os.fork():\n  os.fork(); os._exit(0)"
            assert (await sandbox.exec(["python3", "-c", script])).exit_code == 0
            await asyncio.sleep(0.5)
            states = (await sandbox.exec(["ps", "-eo", "stat="])).stdout.decode().split()
            assert states
            assert not [state for state in states if "Z" in state]

    run(check())


def test_processes_beyond_the_limit_cannot_start_and_the_agent_answers(run, fresh):
    script = (
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "  while n < 400:\n"
        "    if not os.fork(): time.sleep(30); os._exit(0)\n"
        "    n += 1\n"
        "except BlockingIOError: print(n, flush=True)\n"
        "time.sleep(30)\n"
    )

    async def check():
        async with fresh() as sandbox:
            result = await sandbox.exec(["python3", "-c", script], timeout_s=15)
            assert result.timed_out and 200 < int(result.stdout) < 300
            assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"

    run(check())
