"""Files of a real sandbox: whole, confined, atomic, with honest errors."""

import errno
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from journeyman.sandbox.client import AddTar, TemplateSpec
from journeyman.sandbox.client.tree import tree_changes, tree_digests
from journeyman.types import Environment, UserError


def test_64_megabytes_arrive_whole_both_ways(run, fresh):
    async def check():
        async with fresh() as sandbox:
            data = os.urandom(1 << 20) * 64
            await sandbox.write_file("/deep/new/big", data)
            digest = (await sandbox.exec(["sha256sum", "/deep/new/big"])).stdout.split()[0]
            assert digest.decode() == hashlib.sha256(data).hexdigest()
            assert await sandbox.read_file("/deep/new/big") == data

    run(check())


def test_mode_and_replacing(run, fresh):
    async def check():
        async with fresh() as sandbox:
            await sandbox.write_file("/x/tool", b"#!/bin/sh\necho one\n", mode=0o755)
            assert (await sandbox.exec(["/x/tool"])).stdout == b"one\n"
            await sandbox.write_file("/x/tool", b"two", mode=0o640)
            entry = await sandbox.stat("/x/tool")
            assert (entry.kind, entry.mode, entry.size) == ("f", 0o640, 3)

    run(check())


def test_a_write_that_fails_leaves_the_old_file_and_no_other(run, fresh):
    async def check():
        async with fresh() as sandbox:
            await sandbox.write_file("/tmp/kept", b"old")
            await sandbox.exec(["fallocate", "-l", "255M", "/tmp/filler"])
            with pytest.raises(OSError) as caught:
                await sandbox.write_file("/tmp/kept", bytes(4 << 20))
            assert caught.value.errno == errno.ENOSPC
            assert await sandbox.read_file("/tmp/kept") == b"old"
            names = [entry.name for entry in await sandbox.list("/tmp")]
            assert names == [b"filler", b"kept"]
            await sandbox.remove("/tmp/filler")
            await sandbox.write_file("/tmp/kept", b"new")
            assert await sandbox.read_file("/tmp/kept") == b"new"

    run(check())


def test_errors_carry_their_type_and_the_path(run, fresh):
    async def check():
        async with fresh() as sandbox:
            with pytest.raises(FileNotFoundError, match="/no/such"):
                await sandbox.read_file("/no/such")
            with pytest.raises(IsADirectoryError):
                await sandbox.read_file("/app")
            with pytest.raises(IsADirectoryError):
                await sandbox.write_file("/app", b"")
            with pytest.raises(UserError, match="larger than 10 bytes"):
                await sandbox.read_file("/app/hello.py", max_bytes=10)
            with pytest.raises(OSError) as caught:
                await sandbox.read_file("/dev/zero")
            assert caught.value.errno == errno.EINVAL

    run(check())


def test_links_and_dots_lead_to_the_guests_own_files(run, fresh):
    async def check():
        async with fresh() as sandbox:
            await sandbox.exec(["ln", "-s", "/etc/shadow", "/app/link"])
            assert await sandbox.read_file("/app/link") != Path("/etc/shadow").read_bytes()  # noqa: ASYNC240
            outside = await sandbox.read_file("/app/../../../../etc/hostname")
            assert outside.decode() == sandbox.id

    run(check())


@pytest.mark.parametrize(
    "name",
    ["with space", "new\nline", "-rf", "caf\u00e9", os.fsdecode(b"raw\xff\xfe"), "a&b=c?d#e%20"],
)
def test_odd_names(run, fresh, name):
    async def check():
        async with fresh() as sandbox:
            await sandbox.write_file(f"/odd/{name}", b"content")
            assert await sandbox.read_file(f"/odd/{name}") == b"content"
            assert [entry.name for entry in await sandbox.list("/odd")] == [os.fsencode(name)]
            assert list(await tree_digests(sandbox, "/odd")) == [name]
            await sandbox.rename(f"/odd/{name}", f"/odd/sub/{name}")
            await sandbox.remove("/odd/sub")
            assert await sandbox.list("/odd") == []

    run(check())


def test_removing_a_link_leaves_what_it_points_to(run, fresh):
    async def check():
        async with fresh() as sandbox:
            await sandbox.exec(["sh", "-c", "mkdir -p /d/e /kept; touch /kept/f; ln -s /kept /d/l"])
            await sandbox.remove("/d")
            assert [entry.name for entry in await sandbox.list("/kept")] == [b"f"]

    run(check())


def test_tree_changes_tells_new_changed_and_gone_and_follows_no_link(run, fresh):
    async def check():
        async with fresh() as sandbox:
            script = "cd /app; mkdir s; echo a >s/a; echo b >b; echo c >c; ln -s b old; mkdir empty"
            await sandbox.exec(["sh", "-c", script])
            before = await tree_digests(sandbox, "/app")
            assert before["s/a"].sha256 == hashlib.sha256(b"a\n").hexdigest()
            assert (before["old"].kind, before["old"].target) == ("l", "b")
            assert before["empty"].kind == "d"
            assert await tree_changes(sandbox, "/app", before) == {}
            script = (
                "cd /app; echo A >s/a; rm b; ln -sf /etc/shadow c; echo n >new;"
                "ln -s /etc/shadow nl; ln -s /etc dir; touch hello.py"
            )
            await sandbox.exec(["sh", "-c", script])
            changes = await tree_changes(sandbox, "/app", before)
            assert changes == {"s/a": b"A\n", "b": None, "c": None, "new": b"n\n"}
            with pytest.raises(FileNotFoundError):
                await tree_digests(sandbox, "/nowhere")

    run(check())


def test_tar_members_that_point_outside_stay_in_the_guest(run, service):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("ok/file", "../../../tmp/journeyman-escaped", "/tmp/journeyman-absolute"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"hi"))

    async def check():
        layer = AddTar(path="/data", data=buffer.getvalue())
        # GNU tar refuses `..`: the layer fails and says so; nothing reaches the host.
        with pytest.raises(UserError, match="add_tar"):
            await service.build_template(TemplateSpec(layers=(layer,)))

    run(check())
    assert not os.path.exists("/tmp/journeyman-escaped")
    assert not os.path.exists("/tmp/journeyman-absolute")


def test_environment_files_are_written_and_a_bad_one_fails_the_creation(run, service, fresh):
    async def check():
        async with fresh(**{"/app/extra/file": b"\x00\xff"}) as sandbox:
            assert await sandbox.read_file("/app/extra/file") == b"\x00\xff"
        from journeyman.types import SandboxError

        before = {info.id for info in await service.list()}
        template = sandbox.info.template
        with pytest.raises(SandboxError, match="/app/hello.py/below"):
            await service.create(Environment(template=template, files={"/app/hello.py/below": b""}))
        assert {info.id for info in await service.list()} <= before

    run(check())
