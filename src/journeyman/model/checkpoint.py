"""Checkpoints on disk: a Hugging Face directory with safetensors, and digests of weights."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from journeyman.model.config import ModelConfig
from journeyman.model.llama import Llama
from journeyman.types import EngineError, UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE",
    "source.json",
)
"""Files beside the weights that a copy of a checkpoint takes along."""


def load(model_dir: Path, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """The model in `model_dir`. Raises UserError naming what is missing or does not fit."""
    config = ModelConfig.load(model_dir)
    with torch.device("meta"):
        model = Llama(config)
    state = load_state(model_dir, dtype)
    check_state(state, config, source=str(model_dir))
    model.load_state_dict(state, strict=True, assign=True)
    return model


def load_state(model_dir: Path, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """All tensors under their Hugging Face names, from one file or from shards with an index.

    `dtype` None keeps what is on disk. A tied `lm_head.weight` that some files repeat is left
    out. Raises UserError.
    """
    state: dict[str, Tensor] = {}
    for path in _weight_files(model_dir):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    tensor = file.get_tensor(name)
                    state[name] = tensor if dtype is None else tensor.to(dtype)
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} is not a readable safetensors file: {error}",
                "fetch or export the checkpoint again",
            ) from error
    if ModelConfig.load(model_dir).tied_embeddings:
        state.pop("lm_head.weight", None)
    return state


def _weight_files(model_dir: Path) -> list[Path]:
    index = model_dir / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [model_dir / name for name in names]
    if not (model_dir / WEIGHTS).exists():
        raise UserError(
            f"no weights at {model_dir}: neither {WEIGHTS} nor {INDEX} is there",
            "fetch a model with `journeyman model fetch smollm2-135m`, or name another directory",
        )
    return [model_dir / WEIGHTS]


def check_state(state: Mapping[str, Tensor], config: ModelConfig, source: str = "state") -> None:
    """Raises UserError naming the first tensor that is missing, unknown or misshapen."""
    with torch.device("meta"):
        expected = Llama(config).state_dict()
    cure = "weights and config.json must be of one model"
    for name, want in expected.items():
        if name not in state:
            raise UserError(f"{source} lacks the tensor {name}", cure)
        if state[name].shape != want.shape:
            raise UserError(
                f"{source}: {name} is {list(state[name].shape)}, expected {list(want.shape)}", cure
            )
    unknown = sorted(set(state) - set(expected))
    if unknown:
        raise UserError(f"{source} holds an unknown tensor {unknown[0]}", cure)


def save(weights: Llama | Mapping[str, Tensor], target: Path, tokenizer_from: Path) -> None:
    """Write a checkpoint that Transformers opens, whole or not at all.

    Config, tokenizer and their companions are copied from `tokenizer_from`. An existing
    `target` is replaced. Raises UserError when the disk is full.
    """
    state = weights.state_dict() if isinstance(weights, Llama) else weights
    config = ModelConfig.load(tokenizer_from)
    check_state(state, config)
    with replaced_directory(target) as directory:
        write_weights(state, directory)
        for name in COMPANIONS:
            if (tokenizer_from / name).exists():
                shutil.copyfile(tokenizer_from / name, directory / name)


def write_weights(state: Mapping[str, Tensor], directory: Path) -> None:
    """`model.safetensors` in `directory`, tensors in name order."""
    tensors = {name: state[name].detach().contiguous() for name in sorted(state)}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)


def _flush(directory: Path) -> None:
    """A power cut after the rename must not leave a name without its bytes."""
    for path in (*directory.iterdir(), directory):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_directory(target: Path) -> Iterator[Path]:
    """A fresh directory beside `target` that takes its place when the block ends well, and is
    removed when it does not. Raises UserError when the disk is full or not writable."""
    target = target.absolute()
    scratch: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        scratch.chmod(0o755)
        yield scratch
        _flush(scratch)
        old = scratch.with_name(scratch.name + "-old")
        if target.exists():
            target.rename(old)
        scratch.rename(target)
        _sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {target}: {error}",
            f"free disk space or mend permissions under {target.parent}; nothing was changed",
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def require_finite(state: Mapping[str, Tensor]) -> None:
    """Raises EngineError naming the first tensor, in name order, with a NaN or an infinity."""
    for name in sorted(state):
        # An infinity or a NaN anywhere survives into the sum; bf16 sums are kept in float32.
        if not bool(state[name].sum(dtype=torch.float32).isfinite()):
            raise EngineError(
                f"{name} holds values that are not finite",
                "go back to the last good checkpoint",
            )


def digest(state: Mapping[str, Tensor]) -> str:
    """sha256 (hex) over name, dtype, shape and exact bytes of every tensor, in name order."""
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous().cpu()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
