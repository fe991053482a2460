"""Small container images, made for tests."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
Members = Mapping[str, bytes | str | None]
"""Path → content of a file; a str is the target of a symbolic link; None is a directory."""


def layer_tar(members: Members, mode: int = 0o755) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def busybox_layer(**files: bytes) -> bytes:
    """A root file system of one program and its names."""
    names = ("sh", "cat", "ls", "id", "env", "sleep", "true", "mkdir", "tar", "pwd")
    links: dict[str, bytes | str | None] = {f"bin/{name}": "/bin/busybox" for name in names}
    return layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), **links, **files})


def _blob(root: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    blobs = root / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def write_image(
    root: Path, layers: Sequence[bytes], architecture: str = "amd64", **config: Any
) -> Path:
    """An OCI layout below `root`, its layers compressed."""
    contents = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    described = {
        "os": "linux",
        "architecture": architecture,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": contents},
    }
    manifest = {
        "schemaVersion": 2,
        "config": _blob(root, json.dumps(described).encode()),
        "layers": [_blob(root, gzip.compress(layer, mtime=0)) for layer in layers],
    }
    entry = _blob(root, json.dumps(manifest).encode())
    (root / "index.json").write_text(json.dumps({"manifests": [entry]}), encoding="utf-8")
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    return root
