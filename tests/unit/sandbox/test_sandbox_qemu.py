"""Pure parts of the QEMU driver: maps of memory, archives, control connection, command lines."""

import asyncio
import ctypes
import json
import mmap
import os
import socket
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.sandbox.node import qemu_memory
from journeyman.sandbox.node.qemu_command import (
    Hardware,
    Inherited,
    Rates,
    command_digest,
    command_line,
)
from journeyman.sandbox.node.qemu_disk import Disk, disk_nodes
from journeyman.sandbox.node.qemu_jail import jail_uid
from journeyman.sandbox.node.qemu_kernel import build_initramfs
from journeyman.sandbox.node.qemu_memory import (
    PAGE_BYTES,
    MemoryMap,
    pages_to_save,
    private_pages,
    save_pages,
)
from journeyman.sandbox.node.qemu_monitor import Monitor
from journeyman.types import SandboxError

PAGES = 64
masks = st.lists(st.booleans(), min_size=PAGES, max_size=PAGES).map(lambda m: np.array(m, bool))


def contents(memory: MemoryMap, layers: dict[str, list[int]]) -> list[int]:
    """What each page of the guest holds; 0 where nobody has it. A layer is a list of pages."""
    return [
        layers[memory.layers[owner]][place] if owner >= 0 else 0
        for owner, place in zip(memory.owner_P.tolist(), memory.place_P.tolist(), strict=True)
    ]


@given(st.lists(st.tuples(masks, masks), max_size=5))
def test_a_map_always_leads_to_what_was_saved_last(tmp_path_factory, snapshots):
    memory, layers, right = MemoryMap.empty(PAGES * PAGE_BYTES), {}, [0] * PAGES
    for number, (saved, cleared) in enumerate(snapshots):
        zero = cleared & ~saved
        name = f"memory-{number}"
        values = [100 * (number + 1) + page for page in range(PAGES)]
        layers[name] = [values[page] for page in np.flatnonzero(saved)]
        right = [
            values[page] if saved[page] else 0 if zero[page] else right[page]
            for page in range(PAGES)
        ]
        memory = memory.with_layer(name, saved, zero)
        path = tmp_path_factory.mktemp("map") / "map"
        memory.write(path)
        memory = MemoryMap.read(path, PAGES * PAGE_BYTES)
        assert contents(memory, layers) == right
        assert all((memory.owner_P == index).any() for index in range(len(memory.layers)))
        assert sum(count for _, count, _, _ in memory.pieces()) == sum(p != 0 for p in right)


@pytest.mark.parametrize(
    "text",
    [
        "layer a\n0 1 1 0\n",
        "layer a\n63 2 0 0\n",
        "layer a\n0 1 0\n",
        "layer a\n-1 1 0 0\n",
        "layer a\n0 1 0 x\n",
        "0 1 0 0\n",
    ],
)
def test_a_map_that_names_what_is_not_there_is_refused(tmp_path, text):
    (tmp_path / "map").write_text(text)
    with pytest.raises(SandboxError, match="map"):
        MemoryMap.read(tmp_path / "map", PAGES * PAGE_BYTES)


def test_scattered_pages_are_saved_in_fewer_pieces_than_the_kernel_allows(monkeypatch):
    monkeypatch.setattr(qemu_memory, "MAX_PIECES", 10)
    private = np.zeros(PAGES, bool)
    private[::2] = True
    wanted = pages_to_save(private, MemoryMap.empty(PAGES * PAGE_BYTES))
    assert wanted[private].all()
    nothing = np.zeros(PAGES, bool)
    after = MemoryMap.empty(PAGES * PAGE_BYTES).with_layer("new", wanted, nothing)
    assert after.num_pieces() <= 10


def test_many_layers_become_two():
    memory, nothing = MemoryMap.empty(PAGES * PAGE_BYTES), np.zeros(PAGES, bool)
    one = nothing.copy()
    for number in range(12):
        one = nothing.copy()
        one[number] = True
        memory = memory.with_layer(f"memory-{number}", pages_to_save(one, memory), nothing)
        assert len(memory.layers) <= qemu_memory.MAX_LAYERS
        assert memory.layers[0] == "memory-0"
    assert (memory.owner_P >= 0).sum() == 12


def test_only_private_pages_of_a_process_are_saved(tmp_path):
    base = tmp_path / "base"
    base.write_bytes(b"b" * 8 * PAGE_BYTES)
    with open(base, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert memory[0] == ord("b")  # read pages stay the file's
    memory[2 * PAGE_BYTES] = 1
    memory[3 * PAGE_BYTES : 4 * PAGE_BYTES] = bytes(PAGE_BYTES)
    memory[6 * PAGE_BYTES] = 2
    private = private_pages(os.getpid(), address, 8)
    assert np.flatnonzero(private).tolist() == [2, 3, 6]
    saved, zero = save_pages(os.getpid(), address, private, tmp_path / "layer")
    assert (np.flatnonzero(saved).tolist(), np.flatnonzero(zero).tolist()) == ([2, 6], [3])
    layer = (tmp_path / "layer").read_bytes()
    assert len(layer) == 2 * PAGE_BYTES
    assert (layer[0], layer[1], layer[PAGE_BYTES]) == (1, ord("b"), 2)


def test_the_kernel_reads_our_archive(tmp_path):
    modules = tmp_path / "modules"
    modules.mkdir()
    names = ("ring", "", "_pci_legacy_dev", "_pci_modern_dev", "_pci", "_blk", "_console")
    for name in names:
        file = f"virtio_{name}".replace("__", "_").rstrip("_")
        (modules / f"{file}.ko").write_bytes(file.encode())
    (tmp_path / "init").write_bytes(b"first")
    (tmp_path / "agent").write_bytes(b"agent!")
    archive = build_initramfs(modules, tmp_path / "init", tmp_path / "agent")
    found, at = {}, 0
    while at < len(archive):  # the format's own rules, not our writer's
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        assert archive[at : at + 6] == b"070701"
        name = archive[at + 110 : at + 109 + fields[11]].decode()
        begin = -(-(at + 110 + fields[11]) // 4) * 4
        found[name] = archive[begin : begin + fields[6]]
        at = -(-(begin + fields[6]) // 4) * 4
    assert found["init"] == b"first" and found["agent"] == b"agent!"
    order = found["modules/order"].decode().split()
    assert order.index("virtio_ring.ko") < order.index("virtio.ko") < order.index("virtio_pci.ko")
    assert all(found[f"modules/{name}"] for name in order)


def test_every_option_is_part_of_the_fingerprint(monkeypatch):
    before = command_digest()
    monkeypatch.setattr("journeyman.sandbox.node.qemu_command._KERNEL_OPTIONS", "quiet")
    assert command_digest() != before


def test_overlays_lie_above_each_other_and_only_the_topmost_is_written(tmp_path):
    disk = Disk(tmp_path, 1 << 30, ["old", "older"], "top")
    hardware = Hardware(memory_bytes=1 << 30, cpus=2, disk_bytes=1 << 30)
    rates = Rates(bytes_per_s=1, operations_per_s=2)
    nodes = disk_nodes(disk, "/image", "/disks")
    argv = command_line(hardware, nodes, rates, Inherited(3, 4, None))
    told = [json.loads(argv[i + 1]) for i, word in enumerate(argv) if word == "-blockdev"]
    assert told == nodes
    by_name = {node["node-name"]: node for node in nodes}
    assert [by_name[name]["backing"] for name in ("old", "older", "top")] == [
        "image",
        "old",
        "older",
    ]
    writable = [node["node-name"] for node in nodes if not node.get("read-only", False)]
    assert writable == ["top-f", "top", "disk"]
    assert "exec:" not in " ".join(argv)


def test_jail_users_are_no_accounts_and_differ():
    users = {jail_uid(f"sb-{number:x}") for number in range(1000)}
    assert len(users) == 1000 and min(users) >= 0x60000000 and max(users) < 0x70000000


async def _monitored(talk):
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    events = []
    monitor = Monitor("m", reader, writer, events.append)
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)
    try:
        return await asyncio.wait_for(talk(monitor, their_reader, their_writer, events), 10)
    finally:
        monitor.close()
        their_writer.close()


def test_a_monitor_matches_answers_and_events():
    async def talk(monitor, reader, writer, events):
        writer.write(b'{"QMP": {"version": {}}}\n')
        await monitor.greeted(5)
        stopped = monitor.expect(lambda event: event["event"] == "STOP")
        first = monitor.post("one", node_name="n")
        second = monitor.post("two")
        asked = json.loads(await reader.readline())
        assert asked["execute"] == "one" and asked["arguments"] == {"node-name": "n"}
        other = json.loads(await reader.readline())
        writer.write(b'{"event": "RESUME"}\n{"event": "STOP"}\n')
        bad = {"id": asked["id"], "error": {"class": "GenericError", "desc": "no such node"}}
        writer.write(json.dumps(bad).encode() + b"\n")
        writer.write(json.dumps({"id": other["id"], "return": 7}).encode() + b"\n")
        assert await second == 7
        with pytest.raises(SandboxError, match="no such node"):
            await first
        assert (await stopped)["event"] == "STOP"
        assert [event["event"] for event in events] == ["RESUME", "STOP"]

    asyncio.run(_monitored(talk))


@pytest.mark.parametrize(
    "rubbish", [b"", b"not json\n", b"[]\n", b"7\n", b'{"id": []}\n', b"x" * (2 << 20)]
)
def test_a_monitor_that_talks_rubbish_or_ends_fails_every_waiting_call(rubbish):
    async def talk(monitor, reader, writer, events):
        waiting = [monitor.post("one"), monitor.expect(lambda event: True)]
        writer.write(rubbish)
        writer.close()
        for future in waiting:
            with pytest.raises(SandboxError, match="has ended"):
                await future
        with pytest.raises(SandboxError, match="has ended"):
            await monitor.execute("two")
        with pytest.raises(SandboxError, match="has ended"):
            await monitor.greeted(5)

    asyncio.run(_monitored(talk))


LAYERED = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR);
    char *memory = mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (argc > 2) memory[4096] = 'w';
    for (int page = 0; page < 8; page++) putchar(memory[page * 4096] ? memory[page * 4096] : '.');
    return 0;
}
"""


def test_layers_are_mapped_where_the_map_says_and_never_written(tmp_path):
    from journeyman.sandbox.node.native_build import PRELOADED, compile_c
    from journeyman.sandbox.node.qemu import LAYERS_SOURCE

    library = compile_c("qemu-layers", LAYERS_SOURCE, PRELOADED, ("gcc", "cc"))
    (tmp_path / "reader.c").write_text(LAYERED)
    program = tmp_path / "reader"
    flags = ["-D_FILE_OFFSET_BITS=64", str(tmp_path / "reader.c"), "-o", str(program)]
    subprocess.run(["gcc", *flags], check=True)
    for name, text in (("one", "abc"), ("two", "xy")):
        (tmp_path / name).write_bytes(b"".join(bytes([ord(c)]) * 4096 for c in text))
    ram = tmp_path / "ram"
    ram.write_bytes(b"")
    os.truncate(ram, 8 * 4096)
    environment = {
        "JOURNEYMAN_RAM": str(ram),
        "JOURNEYMAN_MEMORY": str(tmp_path),
        "LD_PRELOAD": str(library),
    }

    def read(*arguments):
        command = [str(program), str(ram), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert read().stdout == "........"  # a first start
    (tmp_path / "map").write_text("layer one\nlayer two\n0 2 0 1\n4 1 1 0\n6 1 0 0\n")
    assert read().stdout == "bc..x.a."
    assert read("write").stdout == "bw..x.a."
    assert read().stdout == "bc..x.a." and ram.read_bytes() == bytes(8 * 4096)
    for wrong in (
        "layer one\n7 2 0 0\n",
        "layer one\n0 1 1 0\n",
        "layer none\n",
        "layer one\n0 1\n",
    ):
        (tmp_path / "map").write_text(wrong)
        refused = read()
        assert refused.returncode == 90 and "cannot" in refused.stderr, wrong
