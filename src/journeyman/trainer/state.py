"""Trainer checkpoints: everything a bit-for-bit continuation needs, in one directory.

`weights.safetensors`, `first_moments.safetensors` and `second_moments.safetensors` hold FP32
tensors under Hugging Face names; `random.safetensors` torch's generator; `state.json` counts,
settings and digests.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from journeyman.model import checkpoint
from journeyman.trainer.optimiser import Optimiser
from journeyman.trainer.parameters import Parameters
from journeyman.types import UserError, Value

RECORD = "state.json"
RANDOM = "random"
CURE = "resume from an earlier checkpoint"


class StateRecord(Value):
    """What `state.json` says."""

    format: int = 1
    num_versions: int
    num_steps: int
    """Optimiser steps since the moments were last reset."""
    settings: dict[str, object]
    """The optimiser's, for people to read; a resumed run takes its own configuration's."""
    arithmetic: str
    """Who computed, as far as the last bits depend on it."""
    digests: dict[str, str]
    """Of each tensor file: sha256 over names and exact bytes."""


def save(
    target: Path,
    parameters: Parameters,
    optimiser: Optimiser,
    *,
    num_versions: int,
    arithmetic: str,
) -> None:
    """Write the directory whole or not at all. Raises UserError when the disk is full."""
    groups = _groups(parameters, optimiser)
    groups[RANDOM] = {"torch": torch.get_rng_state()}
    with checkpoint.replaced_directory(target) as directory:
        for name, tensors in groups.items():
            save_file(tensors, directory / f"{name}.safetensors")
        record = StateRecord(
            num_versions=num_versions,
            num_steps=optimiser.num_steps,
            settings=asdict(optimiser.settings),
            arithmetic=arithmetic,
            digests={name: checkpoint.digest(tensors) for name, tensors in groups.items()},
        )
        (directory / RECORD).write_text(record.model_dump_json(indent=2) + "\n")


def load(source: Path, parameters: Parameters, optimiser: Optimiser) -> StateRecord:
    """Restore what `save` wrote. Raises UserError naming a file that is missing, damaged or of
    another model; then nothing has changed. The compute copies are the caller's to refresh."""
    record = read_record(source)
    groups = _groups(parameters, optimiser)
    loaded = {name: _read(source, name, record) for name in (*groups, RANDOM)}
    for name, tensors in groups.items():
        _check_shapes(source / f"{name}.safetensors", tensors, loaded[name])
    for name, tensors in groups.items():
        for key, tensor in tensors.items():
            tensor.copy_(loaded[name][key])
    torch.set_rng_state(loaded[RANDOM]["torch"])
    optimiser.num_steps = record.num_steps
    return record


def read_record(source: Path) -> StateRecord:
    """`state.json` of a trainer checkpoint. Raises UserError."""
    path = source / RECORD
    try:
        return StateRecord.model_validate_json(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"no trainer checkpoint at {source}: {RECORD} is missing",
            "name a directory that a run saved; exported checkpoints hold no optimiser state",
        ) from None
    except (ValidationError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}", CURE) from error


def _groups(parameters: Parameters, optimiser: Optimiser) -> dict[str, dict[str, Tensor]]:
    return {
        "weights": dict(parameters.named(parameters.master)),
        "first_moments": dict(parameters.named(optimiser.first_moments)),
        "second_moments": dict(parameters.named(optimiser.second_moments)),
    }


def _read(source: Path, name: str, record: StateRecord) -> dict[str, Tensor]:
    path = source / f"{name}.safetensors"
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or missing: {error}", CURE) from error
    found = checkpoint.digest(tensors)
    if found != record.digests.get(name):
        raise UserError(
            f"{path} is damaged: its digest is {found}, {RECORD} says {record.digests.get(name)}",
            CURE,
        )
    return tensors


def _check_shapes(path: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        if name not in found or found[name].shape != tensor.shape:
            what = list(found[name].shape) if name in found else "missing"
            raise UserError(
                f"{path} is of another model: {name} is {what}, expected {list(tensor.shape)}",
                "resume with the model the run was started with",
            )
