"""Pure parts of the sandbox: package sources, snapshots, locks, trees, template values."""

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from journeyman.sandbox.client import Copy, SetEnv, TemplateSpec
from journeyman.sandbox.client.tree import tree_digests
from journeyman.sandbox.node.apt_sources import (
    backports_source,
    debian_sources,
    parse_deb822,
    parse_one_line,
)
from journeyman.sandbox.node.snapshots import SnapshotReader, write_snapshot
from journeyman.sandbox.service.shared_lock import SharedLock
from journeyman.sandbox.wire.errors import describe, rebuild
from journeyman.types import SandboxError, SandboxExhausted, SandboxGone, UserError

ONE_LINE = """
# a comment
deb [signed-by=/k.gpg arch=amd64] http://mirror/debian bookworm main contrib # main archive
deb http://mirror/debian bookworm-updates main
deb-src http://mirror/debian bookworm main
deb http://other/tool bookworm stable
"""
DEB822 = """
Types: deb deb-src
# remarks may stand anywhere
URIs: http://mirror/debian
Suites: bookworm bookworm-updates
 bookworm-security
Components: main
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
Enabled: no
URIs: http://off/debian
Suites: bookworm
Components: main
"""


def test_one_line_sources():
    chosen = debian_sources("bookworm", parse_one_line(ONE_LINE))
    assert [line for source in chosen for line in source.lines()] == [
        "deb [signed-by=/k.gpg arch=amd64] http://mirror/debian bookworm main",
        "deb http://mirror/debian bookworm-updates main",
    ]


def test_deb822_sources_and_backports_come_from_the_same_mirror():
    sources = list(parse_deb822(DEB822))
    assert [source.uri for source in sources] == ["http://mirror/debian"]
    assert sources[0].suites == ("bookworm", "bookworm-updates", "bookworm-security")
    added = backports_source("bookworm", sources)
    assert added and added.lines() == [
        "deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror/debian bookworm-backports main"
    ]
    assert backports_source("bookworm", [*sources, added]) is None


def test_no_source_of_the_release_is_an_error_that_says_so():
    with pytest.raises(UserError, match="trixie"):
        debian_sources("trixie", parse_one_line(ONE_LINE))


def _write(path, content=b"pages"):
    async def fill(into):
        (into / "memory").write_bytes(content)

    return write_snapshot(path, fill, driver="d", fingerprint="f", next_number=5)


def test_a_snapshot_is_whole_or_absent(tmp_path):
    target = tmp_path / "snap"

    async def fail(into):
        (into / "memory").write_bytes(b"half")
        raise SandboxError("disk full")

    with pytest.raises(SandboxError, match="disk full"):
        asyncio.run(write_snapshot(target, fail, driver="d", fingerprint="f", next_number=5))
    assert list(tmp_path.iterdir()) == []
    asyncio.run(_write(target))
    manifest = asyncio.run(SnapshotReader().check(target, "d", "f"))
    assert manifest.next_number == 5


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "manifest", "other engine"])
def test_every_harm_to_a_snapshot_is_refused(tmp_path, harm):
    target = tmp_path / "snap"
    asyncio.run(_write(target, bytes(1000)))
    reader = SnapshotReader()
    asyncio.run(reader.check(target, "d", "f"))  # what was checked before is checked again
    fingerprint = "f"
    if harm == "flip":
        (target / "memory").write_bytes(bytes(999) + b"\x01")
    elif harm == "truncate":
        (target / "memory").write_bytes(bytes(999))
    elif harm == "remove":
        (target / "memory").unlink()
    elif harm == "manifest":
        (target / "manifest.json").write_text('{"driver": "d"')
    else:
        fingerprint = "another CPU"
    with pytest.raises(SandboxError, match=r"corrupt|another engine"):
        asyncio.run(reader.check(target, "d", fingerprint))


def test_an_exclusive_holder_waits_for_shared_ones_and_keeps_new_ones_out():
    async def check():
        lock, order = SharedLock(), []

        async def shared(name, seconds):
            async with lock.shared():
                order.append(f"{name} in")
                await asyncio.sleep(seconds)
                order.append(f"{name} out")

        async def exclusive():
            async with lock.exclusive():
                order.append("alone in")
                await asyncio.sleep(0.02)
                order.append("alone out")

        tasks = [asyncio.create_task(shared("a", 0.02)), asyncio.create_task(shared("b", 0.02))]
        await asyncio.sleep(0.005)
        tasks.append(asyncio.create_task(exclusive()))
        await asyncio.sleep(0.005)
        tasks.append(asyncio.create_task(shared("c", 0)))
        cancelled = asyncio.create_task(shared("d", 0))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*tasks)
        assert order == [
            *("a in", "b in", "a out", "b out", "alone in", "alone out", "c in", "c out"),
        ]
        assert not lock.busy

    asyncio.run(check())


class Answering:
    """A sandbox whose guest answers a tree walk with given bytes."""

    def __init__(self, records: bytes) -> None:
        self.records = records

    async def tree_records(self, root: str) -> bytes:
        return self.records


def record(name: bytes, kind: bytes = b"f", target: bytes = b"") -> bytes:
    head = kind + struct.pack("<IQ", 0o644, 3) + bytes(32)
    return head + struct.pack("<I", len(name)) + name + struct.pack("<I", len(target)) + target


@pytest.mark.parametrize("name", [b"../escape", b"/etc/passwd", b"a/../../b", b"", b"a\0b"])
def test_names_outside_the_tree_are_refused(name):
    with pytest.raises(SandboxError, match="outside its tree"):
        asyncio.run(tree_digests(Answering(record(b"fine") + record(name)), "/app"))


@given(st.binary(max_size=300))
def test_rubbish_for_a_tree_is_a_sandbox_error_or_a_tree(data):
    try:
        digests = asyncio.run(tree_digests(Answering(data), "/app"))
    except SandboxError:
        return
    assert all(not name.startswith("/") and ".." not in name.split("/") for name in digests)


@pytest.mark.parametrize(
    "error",
    [
        SandboxGone("a is gone", "cure"),
        SandboxExhausted("b is gone"),
        SandboxError("c"),
        UserError("d", "e"),
        FileNotFoundError(2, "No such file or directory", "/x\udcff"),
        OSError(28, "No space left on device", "/y"),
    ],
)
def test_errors_cross_http_with_their_type_and_text(error):
    _, body = describe(error)
    again = rebuild(type(body).model_validate_json(body.model_dump_json()))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_template_specs_travel_as_json_and_refuse_unknown_layers():
    spec = TemplateSpec(layers=(Copy(path="/x", data=b"\x00\xff"), SetEnv(name="A", value="b")))
    assert TemplateSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError):
        TemplateSpec.model_validate({"layers": [{"kind": "expose", "port": 1}]})
