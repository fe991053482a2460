"""Reading a container image: an OCI layout or what `docker save` writes, as a directory or a tar.

Nothing of it is trusted: every blob must have the digest it is called by, every layer the digest
that the image's configuration gives for its content, before anything is unpacked.
"""

import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from journeyman.types.failure import UserError
from journeyman.types.value import Value

_MOST_JSON_BYTES = 4 << 20
_MOST_LAYER_BYTES = 20 << 30
_CHUNK_BYTES = 1 << 20
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
Opener = Callable[[str], AbstractContextManager[IO[bytes]]]


class ImageConfig(Value):
    """What an image says about the processes in it."""

    env: Mapping[str, str] = {}
    workdir: str = "/"
    user: str = ""


@dataclass(frozen=True)
class Layer:
    """One layer: where its blob lies, and the sha256 of its uncompressed tar."""

    name: str
    content_digest: str
    blob_digest: str = ""
    """sha256 of the blob itself, where the image is a layout that names it so."""


@dataclass(frozen=True)
class ImageLayout:
    """An image whose metadata has been read and checked, its layers not yet."""

    config: ImageConfig
    layers: tuple[Layer, ...]
    digest: str
    """sha256 of the configuration, which names every layer's content."""
    open_blob: Opener


@contextmanager
def open_image(source: Path, machine: str) -> Iterator[ImageLayout]:
    """Raises UserError for what is no image, is for another processor, or was tampered with.

    `machine` is what `platform.machine()` says of the host.
    """
    if source.is_dir():
        yield _read(lambda name: _open_file(source, name), source, machine)
        return
    try:
        with tarfile.open(source, "r:*") as archive:
            yield _read(lambda name: _open_member(archive, name), source, machine)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(
            f"{source} is no image: {error}", "Give an OCI layout or a tar of one."
        ) from None


def layer_content(layout: ImageLayout, layer: Layer, into: IO[bytes]) -> None:
    """Write a layer's tar, uncompressed, to `into`. Raises UserError when a digest differs."""
    blob, content, written = hashlib.sha256(), hashlib.sha256(), 0
    with layout.open_blob(layer.name) as file:
        for piece in _uncompressed(file, blob, layer.name):
            content.update(piece)
            written += len(piece)
            if written > _MOST_LAYER_BYTES:
                raise UserError(f"layer {layer.name} holds more than {_MOST_LAYER_BYTES} bytes")
            into.write(piece)
    for found, expected in (
        (blob.hexdigest(), layer.blob_digest),
        (content.hexdigest(), layer.content_digest),
    ):
        if expected and found != expected:
            raise UserError(
                f"layer {layer.name} has digest {found}, not {expected} as the image says",
                "Nothing of it was used. Save the image again.",
            )


def _uncompressed(file: IO[bytes], blob: Any, name: str) -> Iterator[bytes]:
    """The tar's bytes; `blob` is fed with what was read."""
    first = file.read(_CHUNK_BYTES)
    blob.update(first)
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        raise UserError(
            f"layer {name} is compressed with zstd, which is not supported",
            "Save the image with gzip layers, for instance with `skopeo copy --dest-compress`.",
        )
    gzip = zlib.decompressobj(wbits=31) if first.startswith(b"\x1f\x8b") else None
    piece = first
    while piece:
        rest = piece
        while gzip and rest:
            yield gzip.decompress(rest, _CHUNK_BYTES)
            rest = gzip.unconsumed_tail
            if gzip.eof and (rest := gzip.unused_data):
                gzip = zlib.decompressobj(wbits=31)  # gzip allows several members
        if not gzip:
            yield piece
        piece = file.read(_CHUNK_BYTES)
        blob.update(piece)
    if gzip:
        yield gzip.flush()
        if not gzip.eof:
            raise UserError(f"layer {name} ends in the middle of its compressed data")


def _open_file(root: Path, name: str) -> AbstractContextManager[IO[bytes]]:
    path = root / name
    if path.is_symlink() or not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{name!r} of the image {root} leads out of it")
    try:
        return open(path, "rb")
    except (FileNotFoundError, IsADirectoryError):
        raise KeyError(name) from None


def _open_member(archive: tarfile.TarFile, name: str) -> AbstractContextManager[IO[bytes]]:
    for spelling in (name, f"./{name}"):
        try:
            file = archive.extractfile(spelling)
        except KeyError:
            continue
        if file is not None:
            return file
    raise KeyError(name)


def _json(open_blob: Opener, name: str, digest: str = "") -> Any:
    with open_blob(name) as file:
        data = file.read(_MOST_JSON_BYTES + 1)
    if len(data) > _MOST_JSON_BYTES:
        raise UserError(f"{name} of the image is larger than {_MOST_JSON_BYTES} bytes")
    found = hashlib.sha256(data).hexdigest()
    if digest and found != digest:
        raise UserError(f"{name} of the image has digest {found}", "Save the image again.")
    return json.loads(data)


def _read(open_blob: Opener, source: Path, machine: str) -> ImageLayout:
    try:
        try:
            index = _json(open_blob, "index.json")
        except KeyError:
            return _docker_archive(open_blob, machine)
        manifest = _manifest(open_blob, index, _ARCHITECTURE.get(machine, machine))
        digest = _hex(manifest["config"]["digest"])
        config = _json(open_blob, f"blobs/sha256/{digest}", digest)
        blobs = [_hex(layer["digest"]) for layer in manifest["layers"]]
        names = [f"blobs/sha256/{blob}" for blob in blobs]
        return _layout(open_blob, config, digest, names, blobs, machine)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise UserError(
            f"{source} is no image: {error!r}",
            "Give an OCI layout, what `docker save` writes, or a tar of either.",
        ) from None


def _manifest(open_blob: Opener, index: Any, architecture: str) -> Any:
    """The manifest of this processor, through indexes of indexes."""
    entries = index["manifests"]
    fitting = [
        entry
        for entry in entries
        if entry.get("platform", {}).get("architecture", architecture) == architecture
    ]
    if not fitting:
        raise UserError(f"the image has nothing for {architecture}", "Save it for this processor.")
    digest = _hex(fitting[0]["digest"])
    found = _json(open_blob, f"blobs/sha256/{digest}", digest)
    is_index = fitting[0].get("mediaType") in _INDEXES or "manifests" in found
    return _manifest(open_blob, found, architecture) if is_index else found


def _docker_archive(open_blob: Opener, machine: str) -> ImageLayout:
    (manifest,) = _json(open_blob, "manifest.json")
    name = manifest["Config"]
    config = _json(open_blob, name)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    layers = [str(PurePosixPath(layer)) for layer in manifest["Layers"]]
    return _layout(open_blob, config, digest, layers, [""] * len(layers), machine)


def _layout(
    open_blob: Opener, config: Any, digest: str, names: list[str], blobs: list[str], machine: str
) -> ImageLayout:
    contents = [_hex(content) for content in config["rootfs"]["diff_ids"]]
    if len(contents) != len(names):
        raise UserError(f"the image has {len(names)} layers and digests for {len(contents)}")
    wanted = _ARCHITECTURE.get(machine, machine)
    if config.get("os", "linux") != "linux" or config.get("architecture", wanted) != wanted:
        raise UserError(
            f"the image is for {config.get('os')}/{config.get('architecture')}",
            f"Save it for linux/{wanted}.",
        )
    own = config.get("config") or {}
    return ImageLayout(
        config=ImageConfig(
            env=dict(entry.partition("=")[::2] for entry in own.get("Env") or ()),
            workdir=own.get("WorkingDir") or "/",
            user=own.get("User") or "",
        ),
        layers=tuple(Layer(*parts) for parts in zip(names, contents, blobs, strict=True)),
        digest=digest,
        open_blob=open_blob,
    )


def _hex(digest: str) -> str:
    """The digits of `sha256:…`, which are about to be part of a path."""
    kind, _, digits = digest.partition(":")
    if kind != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise UserError(f"{digest!r} is no sha256 digest", "Other digests are not supported.")
    return digits
