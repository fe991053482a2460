"""Guest memory as layers of files, and saving only the pages that one machine has changed.

A machine's memory is mapped copy-on-write from layers (`qemu_layers.c`). What it has written since
lies in private pages of QEMU's process; the kernel's page map tells which. A snapshot writes those
to one new layer and goes on referring to the older ones, so that its size and time follow from
what changed, and forks of one snapshot share every page that they leave as it is.

Legend: P = pages of the guest.
"""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from journeyman.types.failure import SandboxError

PAGE_BYTES = 4096
MAX_LAYERS = 6
"""Above this, the new layer takes over the pages of all layers but the first."""
MAX_PIECES = 24_000
"""The kernel allows a process 65,530 mappings, and each piece may cost two."""
_BUFFER_BYTES = 4 << 20
_NOBODY = -1

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MemoryMap:
    """Which layer holds which page of the guest. Without one a page is zero."""

    layers: tuple[str, ...]
    owner_P: NDArray[np.int16]
    """Index into `layers`, or -1."""
    place_P: NDArray[np.int32]
    """Number of the page within its layer."""

    @classmethod
    def empty(cls, memory_bytes: int) -> "MemoryMap":
        pages = memory_bytes // PAGE_BYTES
        return cls((), np.full(pages, _NOBODY, np.int16), np.zeros(pages, np.int32))

    @classmethod
    def read(cls, path: Path, memory_bytes: int) -> "MemoryMap":
        """What `write` wrote. Raises SandboxError on anything else."""
        lines = path.read_text(encoding="ascii").splitlines()
        layers = tuple(line[6:] for line in lines if line.startswith("layer "))
        text = " ".join(lines[len(layers) :])
        empty = cls.empty(memory_bytes)
        try:
            pieces = np.array(text.split(), np.int64).reshape(-1, 4)
        except ValueError:
            raise SandboxError(f"{path} is no map of memory") from None
        page, count, layer, place = pieces.T
        beyond = (layer >= len(layers)) | (page + count > len(empty))
        if bool(beyond.any() or (pieces < 0).any()):
            raise SandboxError(f"{path} names memory or layers that are not there")
        steps = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pages = np.repeat(page, count) + steps
        empty.owner_P[pages] = np.repeat(layer, count)
        empty.place_P[pages] = np.repeat(place, count) + steps
        return cls(layers, empty.owner_P, empty.place_P)

    def __len__(self) -> int:
        return len(self.owner_P)

    def write(self, path: Path) -> None:
        lines = [f"layer {name}" for name in self.layers]
        lines += [f"{page} {count} {layer} {place}" for page, count, layer, place in self.pieces()]
        path.write_text("\n".join(lines) + "\n", encoding="ascii")

    def pieces(self) -> Iterator[tuple[int, int, int, int]]:
        """(page, count, layer, place) of each run of pages that lie together in one layer."""
        begins = self._begins()
        ends = np.append(begins[1:], len(self))
        held = self.owner_P[begins] != _NOBODY
        starts, stops = begins[held], ends[held]
        columns = (starts, stops - starts, self.owner_P[starts], self.place_P[starts])
        yield from zip(*(column.tolist() for column in columns), strict=True)

    def _begins(self) -> NDArray[np.int64]:
        """First pages of the runs, those of nobody included."""
        apart = np.diff(self.owner_P) != 0
        apart |= (self.owner_P[1:] != _NOBODY) & (np.diff(self.place_P) != 1)
        return np.concatenate(([0], np.flatnonzero(apart) + 1))

    def num_pieces(self) -> int:
        return int((self.owner_P[self._begins()] != _NOBODY).sum())

    def with_layer(self, name: str, saved_P: Mask, zero_P: Mask) -> "MemoryMap":
        """The map after `saved_P` were written to a new layer in order. `zero_P` belong to nobody
        from now on. Layers that hold nothing any more are forgotten."""
        owner, place = self.owner_P.copy(), self.place_P.copy()
        owner[saved_P] = len(self.layers)
        place[saved_P] = np.arange(int(saved_P.sum()), dtype=np.int32)
        owner[zero_P] = _NOBODY
        layers = (*self.layers, name)
        used = [index for index in range(len(layers)) if bool((owner == index).any())]
        renumber = np.full(len(layers) + 1, _NOBODY, np.int16)
        renumber[used] = np.arange(len(used))
        return MemoryMap(tuple(layers[index] for index in used), renumber[owner], place)


def pages_to_save(private_P: Mask, memory: MemoryMap) -> Mask:
    """Private pages, and further ones where the map would become too long or too deep."""
    wanted = private_P
    if len(memory.layers) >= MAX_LAYERS:
        wanted = wanted | (memory.owner_P > 0)
    gap = 1
    nothing = np.zeros_like(wanted)
    while memory.with_layer("", wanted, nothing).num_pieces() > MAX_PIECES:
        if gap > len(wanted):
            held: Mask = memory.owner_P != _NOBODY
            return wanted | held
        gap *= 4
        wanted = _without_gaps(wanted, gap)
    return wanted


def _without_gaps(mask_P: Mask, longest: int) -> Mask:
    """Fills gaps of up to `longest` pages: fewer and longer runs."""
    begins, ends = _runs(mask_P)
    filled = mask_P.copy()
    for end, begin in zip(ends[:-1], begins[1:], strict=True):
        if begin - end <= longest:
            filled[end:begin] = True
    return filled


def _runs(mask_P: Mask) -> tuple[list[int], list[int]]:
    edges = np.flatnonzero(np.diff(mask_P.astype(np.int8), prepend=0, append=0))
    return edges[0::2].tolist(), edges[1::2].tolist()


def private_pages(pid: int, address: int, pages: int) -> Mask:
    """Pages of a process from `address` on that no other process can have: present or swapped
    out, and of no file. (Documentation/admin-guide/mm/pagemap.rst)"""
    entries = bytearray()
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE_BYTES * 8)
        while len(entries) < 8 * pages:
            piece = pagemap.read(8 * pages - len(entries))
            if not piece:
                raise SandboxError(f"the page map of process {pid} ends early")
            entries += piece
    flags = np.frombuffer(entries, np.uint64) >> np.uint64(61)
    present_or_swapped, of_a_file = flags >= 2, flags & np.uint64(1) != 0
    mask: Mask = present_or_swapped & ~of_a_file
    return mask


def save_memory(pid: int, address: int, memory: MemoryMap, into: Path) -> MemoryMap:
    """Write what a stopped process has changed to a new layer in `into`; returns the map of its
    present memory."""
    wanted = pages_to_save(private_pages(pid, address, len(memory)), memory)
    name = f"memory-{secrets.token_hex(6)}"
    saved, zero = save_pages(pid, address, wanted, into / name)
    return memory.with_layer(name, saved, zero)


def save_pages(pid: int, address: int, wanted_P: Mask, target: Path) -> tuple[Mask, Mask]:
    """Write the wanted pages of a stopped process to `target`, one after the other.

    Returns (saved, zero): pages that are all zero are not written.
    """
    zero = np.zeros_like(wanted_P)
    buffer = bytearray(_BUFFER_BYTES)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(target, "xb") as file:
        for numbers in _batches(wanted_P):
            _read(memory.fileno(), address, numbers, memoryview(buffer))
            view = np.frombuffer(buffer, np.uint64, len(numbers) * PAGE_BYTES // 8)
            content = view.reshape(len(numbers), -1)
            filled = _filled(content)
            zero[numbers[~filled]] = True
            file.write(content.data if filled.all() else content[filled].data)
    return wanted_P & ~zero, zero


def _filled(content: NDArray[np.uint64]) -> Mask:
    """Rows that are not all zero. Most show it in a few words; only the others are read whole."""
    filled = np.asarray(content[:, ::64].any(axis=1))
    doubtful = np.flatnonzero(~filled)
    filled[doubtful] = content[doubtful].any(axis=1)
    return filled


def _batches(wanted_P: Mask) -> Iterator[NDArray[np.int64]]:
    numbers = np.flatnonzero(wanted_P)
    size = _BUFFER_BYTES // PAGE_BYTES
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _read(descriptor: int, address: int, numbers: NDArray[np.int64], into: memoryview) -> None:
    """One system call for each run of pages that lie together."""
    begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    ends = np.append(begins[1:], len(numbers))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        at, stop = begin * PAGE_BYTES, end * PAGE_BYTES
        offset = address + (int(numbers[begin]) - begin) * PAGE_BYTES
        while at < stop:
            got = os.preadv(descriptor, [into[at:stop]], offset + at)
            if got <= 0:
                raise SandboxError("a machine's memory cannot be read: its process has ended")
            at += got
