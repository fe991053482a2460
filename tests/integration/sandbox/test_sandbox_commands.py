"""Commands in a real sandbox: ends, time-outs, trees, output."""

import asyncio
import time


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
