"""Container images as bases of templates: what they hold arrives, what they try stays inside."""

import asyncio
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journeyman.sandbox.client import Run, SandboxClient, TemplateSpec
from journeyman.sandbox.node.images import Images
from journeyman.types import Environment, UserError

from .image_of import busybox_layer, layer_tar, write_image


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "images")


def imported(images: Images, root: Path) -> Path:
    """The root file system of an image below `root`."""
    return images.root(asyncio.run(images.add(root)))


def test_a_sandbox_runs_on_an_image_with_only_busybox(
    service: SandboxClient, run: Callable[..., Any], tmp_path: Path
) -> None:
    layers = [busybox_layer(), layer_tar({"etc/motd": b"hello\n"})]
    env = ["GREETING=good morning", "PATH=/bin"]
    image = write_image(tmp_path, layers, Env=env, WorkingDir="/srv/work")

    async def main() -> None:
        base = await service.import_image(image)
        spec = TemplateSpec(base=base, layers=(Run(command="pwd > /made && echo $0 >> /made"),))
        template = await service.build_template(spec)
        sandbox = await service.create(Environment(template=template))
        try:
            told = await sandbox.exec(["sh", "-c", "cat /etc/motd /made; echo $GREETING"])
            assert told.stdout == b"hello\n/srv/work\nsh\ngood morning\n"
            assert (await sandbox.exec(["python3", "-V"])).exit_code == 127
        finally:
            await sandbox.close()

    run(main())


def test_the_same_image_has_the_same_id_however_it_comes(
    service: SandboxClient, run: Callable[..., Any], tmp_path: Path
) -> None:
    image = write_image(tmp_path / "layout", [layer_tar({"a": b"1"})])
    archive = tmp_path / "image.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(image, arcname=".")
    first = run(service.import_image(image))
    assert run(service.import_image(archive)) == first
    assert first.startswith("i-")


def test_later_layers_remove_and_replace(images: Images, tmp_path: Path) -> None:
    layers = [
        layer_tar({"d/old": b"1", "d/kept": b"1", "gone": b"1", "lib": "usr/lib", "e/x": b"1"}),
        layer_tar(
            {"d/.wh.old": b"", ".wh.gone": b"", "lib/new": b"2", "e/.wh..wh..opq": b"", "e/y": b"2"}
        ),
    ]
    root = imported(images, write_image(tmp_path, layers))
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert names == ["d/kept", "e/y", "usr/lib/new"]


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "../../../../../tmp/escaped"])
def test_a_path_that_leads_up_is_refused(images: Images, tmp_path: Path, name: str) -> None:
    image = write_image(tmp_path / "layout", [layer_tar({name: b"out"})])
    with pytest.raises(UserError, match="cannot be unpacked"):
        asyncio.run(images.add(image))
    assert not list(tmp_path.rglob("escaped"))
    assert not list((tmp_path / "images").iterdir())


def test_links_of_an_image_do_not_lead_out(images: Images, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    layers = [
        layer_tar({"door": str(outside), "etc": "/", "up": "../../../../.."}),
        layer_tar({"door/victim": b"changed", "etc/new": b"x", f"up{outside}/victim": b"changed"}),
    ]
    root = imported(images, write_image(tmp_path / "layout", layers))
    assert (outside / "victim").read_text() == "untouched"
    assert [path.name for path in outside.iterdir()] == ["victim"]
    # Where the links lead inside the image's own root, the files are.
    assert (root / str(outside).lstrip("/") / "victim").read_bytes() == b"changed"
    assert (root / "new").read_bytes() == b"x"


def test_devices_are_left_out_and_owners_kept(images: Images, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        disk = tarfile.TarInfo("dev/sda")
        disk.type, disk.devmajor, disk.devminor = tarfile.BLKTYPE, 8, 0
        archive.addfile(disk)
        file = tarfile.TarInfo("home/file")
        file.uid, file.gid, file.mode, file.mtime = 1000, 1001, 0o4750, 12345
        archive.addfile(file)
    root = imported(images, write_image(tmp_path, [out.getvalue()]))
    assert not (root / "dev" / "sda").exists()
    found = (root / "home" / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1000, 1001, 0o4750)
    assert found.st_mtime == 12345
    # A set-uid file must be out of reach for everybody else on the host.
    assert root.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_changed_layer_is_refused_before_it_is_unpacked(images: Images, tmp_path: Path) -> None:
    image = write_image(tmp_path / "layout", [layer_tar({"a": b"1" * 5000})])
    manifest = json.loads((image / "index.json").read_text())["manifests"][0]["digest"][7:]
    layer = json.loads((image / "blobs/sha256" / manifest).read_text())["layers"][0]["digest"][7:]
    path = image / "blobs/sha256" / layer
    data = bytearray(path.read_bytes())
    data[9] ^= 255  # a byte of the header that no decompressor looks at
    path.write_bytes(data)
    with pytest.raises(UserError, match="has digest"):
        asyncio.run(images.add(image))
    assert not list((tmp_path / "images").iterdir())


def test_a_changed_configuration_is_refused(images: Images, tmp_path: Path) -> None:
    image = write_image(tmp_path / "layout", [layer_tar({"a": b"1"})])
    manifest = json.loads((image / "index.json").read_text())["manifests"][0]["digest"][7:]
    config = json.loads((image / "blobs/sha256" / manifest).read_text())["config"]["digest"][7:]
    (image / "blobs/sha256" / config).write_text("{}")
    with pytest.raises(UserError, match="has digest"):
        asyncio.run(images.add(image))


def test_what_is_no_image_is_told_so(images: Images, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear all,")
    (tmp_path / "empty").mkdir()
    for source in ("letter", "empty"):
        with pytest.raises(UserError, match="is no image"):
            asyncio.run(images.add(tmp_path / source))


def test_an_image_for_another_processor_is_refused(images: Images, tmp_path: Path) -> None:
    image = write_image(tmp_path, [layer_tar({"a": b"1"})], architecture="s390x")
    with pytest.raises(UserError, match="linux/s390x"):
        asyncio.run(images.add(image))


def test_an_image_whose_commands_are_not_root_is_refused_by_name(
    service: SandboxClient, run: Callable[..., Any], tmp_path: Path
) -> None:
    base = run(service.import_image(write_image(tmp_path, [busybox_layer()], User="nobody")))
    with pytest.raises(UserError, match="'nobody'"):
        run(service.build_template(TemplateSpec(base=base)))
