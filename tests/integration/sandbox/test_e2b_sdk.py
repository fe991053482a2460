"""The official SDK, unchanged, in its oldest and newest supported version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .e2b_service import VERSIONS, Face, face

pytestmark = pytest.mark.parametrize("version", VERSIONS)

HEAD = """
import time
from importlib.metadata import version
from e2b import (AsyncSandbox, CommandExitException, NotFoundException, PtySize, Sandbox,
                 SandboxQuery, SandboxState, TimeoutException)

VERSION = version("e2b")

def raises(kind, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")

"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    state: Path = tmp_path_factory.mktemp("e2b")
    with face(state) as found:
        yield found


def test_commands(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
with Sandbox.create(timeout=120, envs={"FOO": "bar"}) as box:
    done = box.commands.run("echo $FOO; id -un; pwd; echo bad >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("bar\\nuser\\n/home/user\\n", "bad\\n", 0)
    assert raises(CommandExitException, box.commands.run, "exit 3").exit_code == 3
    heard = []
    box.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", on_stdout=heard.append)
    assert "".join(heard) == "1\\n2\\n3\\n"
    assert box.commands.run("echo ä | tr -d b; echo $A", envs={"A": "1"}).stdout == "ä\\n1\\n"
    assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\\n"
    raises(Exception, box.commands.run, "pwd", cwd="/no/such/place")
    assert box.commands.run("id -u", user="root").stdout == "0\\n"

    sleeper = box.commands.run("sleep 100", background=True)
    assert sleeper.pid in [one.pid for one in box.commands.list()]
    assert sleeper.kill() and not box.commands.kill(sleeper.pid)
    assert sleeper.pid not in [one.pid for one in box.commands.list()]

    cat = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(cat.pid, "one\\n")
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "one\\n"

    counter = box.commands.run("sleep 1; echo late", background=True)
    assert box.commands.connect(counter.pid).wait().stdout == "late\\n"
    raises(TimeoutException, box.commands.run, "sleep 5", timeout=1)
    assert len(box.commands.run("head -c 3000000 /dev/zero | tr '\\\\0' x").stdout) == 3_000_000
""",
    )


def test_terminals(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
with Sandbox.create(timeout=120) as box:
    said = bytearray()
    pty = box.pty.create(size=PtySize(rows=24, cols=80))
    box.pty.resize(pty.pid, PtySize(rows=50, cols=132))
    box.pty.send_stdin(pty.pid, b"stty size; tty; exit 7\\n")
    error = raises(CommandExitException, pty.wait, on_pty=said.extend)
    assert error.exit_code == 7
    assert b"50 132" in said and b"/dev/pts/" in said
    assert box.pty.kill(box.pty.create(size=PtySize(rows=24, cols=80)).pid)
""",
    )


def test_files(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
with Sandbox.create(timeout=120) as box:
    files = box.files
    made = files.write("a/b c.txt", "hellö")
    assert made.path == "/home/user/a/b c.txt" and files.read("a/b c.txt") == "hellö"
    data = bytes(range(256)) * 20_000
    files.write("/tmp/raw", data)
    assert bytes(files.read("/tmp/raw", format="bytes")) == data
    assert b"".join(files.read("/tmp/raw", format="stream")) == data
    many = files.write_files([{"path": "m/1", "data": "1"}, {"path": "m/2", "data": b"2"}])
    assert [one.path for one in many] == ["/home/user/m/1", "/home/user/m/2"]
    assert files.exists("m/1") and not files.exists("m/3")
    raises(NotFoundException, files.read, "m/3")
    assert files.make_dir("d/e") and not files.make_dir("d/e")
    assert files.rename("m/1", "d/e/one").path == "/home/user/d/e/one"
    listed = {one.path: one for one in files.list("d", depth=2)}
    assert set(listed) == {"/home/user/d/e", "/home/user/d/e/one"}
    one = listed["/home/user/d/e/one"]
    assert (one.size, one.owner, one.group, one.permissions) == (1, "user", "user", "-rw-r--r--")
    files.remove("d")
    assert not files.exists("d/e/one")
    box.commands.run("printf '#!/bin/sh\\necho old\\n' > run && chmod 755 run && ln -s run link")
    files.write("link", "#!/bin/sh\\necho new\\n")
    assert box.commands.run("./run").stdout == "new\\n"  # written through, still executable
    assert files.get_info("link").symlink_target == "run"
    files.write("root.txt", "x", user="root")
    assert files.get_info("/root/root.txt").owner == "root"
""",
    )


def test_lives(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
box = Sandbox.create(timeout=120, metadata={"who": "me & you", "version": VERSION})
query = SandboxQuery(metadata={"who": "me & you", "version": VERSION})
assert [one.sandbox_id for one in Sandbox.list(query=query).next_items()] == [box.sandbox_id]
assert box.get_info().metadata["who"] == "me & you"
before = box.get_info().end_at
box.set_timeout(600)
assert (box.get_info().end_at - before).total_seconds() > 400
box.files.write("kept", "1")
held = box.commands.run("sleep 1000", background=True)
box.pause()
assert box.get_info().state == SandboxState.PAUSED
again = Sandbox.connect(box.sandbox_id, timeout=120)
assert again.files.read("kept") == "1" and held.pid in [one.pid for one in again.commands.list()]
kept = again.create_snapshot()
again.files.write("kept", "2")
early = Sandbox.create(kept.snapshot_id, timeout=60)
assert early.files.read("kept") == "1" and again.files.read("kept") == "2"
assert Sandbox.delete_snapshot(kept.snapshot_id) and not Sandbox.delete_snapshot(kept.snapshot_id)
twins = again.fork(count=2)
twins[0].files.write("kept", "3")
assert [one.files.read("kept") for one in (*twins, again)] == ["3", "2", "2"]
drawn = {one.commands.run("head -c 16 /dev/urandom | base64; hostname").stdout for one in twins}
assert len(drawn) == 2
for one in (early, *twins, again):
    assert one.kill() and not one.is_running()
assert not again.kill()
raises(Exception, again.commands.run, "true")
short = Sandbox.create(timeout=1)
time.sleep(3)
assert not short.is_running()
assert "not found" in str(raises(Exception, Sandbox.create, "no-such-template"))
""",
    )


def test_an_end_that_pauses(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
lifecycle = {"on_timeout": "pause", "auto_resume": True}
box = Sandbox.create(timeout=2, lifecycle=lifecycle)
box.files.write("kept", "1")
for _ in range(100):
    if box.get_info().state == SandboxState.PAUSED:
        break
    time.sleep(0.1)
else:
    raise AssertionError("it did not pause")
assert box.files.read("kept") == "1"  # use wakes it
box.kill()
""",
    )


def test_the_asynchronous_flavour(here: Face, version: str) -> None:
    here.python(
        version,
        HEAD
        + """
import asyncio

async def main():
    boxes = await asyncio.gather(*(AsyncSandbox.create(timeout=60) for _ in range(3)))
    done = await asyncio.gather(*(box.commands.run("hostname") for box in boxes))
    assert [one.stdout.strip() for one in done] == [box.sandbox_id for box in boxes]
    box = boxes[0]
    sleeper = await box.commands.run("sleep 100", background=True)
    assert await sleeper.kill()
    await box.files.write("x", "1")
    assert await box.files.read("x") == "1"
    await asyncio.gather(*(box.kill() for box in boxes))

asyncio.run(main())
""",
    )
