"""Checkpoints: exact continuation, and damage that is told of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.trainer import Trainer
from journeyman.types import Batch, UserError
from tests.unit.trainer.conftest import WIDE, batch, sample, write_model

STEP_IN_ANOTHER_PROCESS = """
import sys, torch
from pathlib import Path
from journeyman.trainer import Trainer
from journeyman.types import Batch
torch.set_num_threads(int(sys.argv[4]))
trainer = Trainer(Path(sys.argv[1]), learning_rate=1e-3, weight_decay=0.1, warmup_steps=4)
trainer.load(Path(sys.argv[2]))
metrics = trainer.step(Batch.model_validate_json(Path(sys.argv[3]).read_text()), "policy")
print(trainer.weights()[0].digest, metrics.loss.hex(), metrics.gradient_norm.hex())
"""


def make(model: Path) -> Trainer:
    return Trainer(model, learning_rate=1e-3, weight_decay=0.1, warmup_steps=4)


def numbered(step: int) -> Batch:
    return batch(
        *(
            sample(
                [1, 2, 3, step, i, 5, 6],
                [4, 5, 6],
                logprobs={4: -3.0, 5: -2.0, 6: -4.0},
                advantage=i - 1.5,
            )
            for i in range(4)
        ),
        step=step,
    )


def test_a_killed_run_continues_bit_for_bit_in_another_process(
    wide_model: Path, tmp_path: Path
) -> None:
    import torch

    trainer = make(wide_model)
    for step in range(3):
        trainer.step(numbered(step), "policy")
    trainer.save(tmp_path / "state")
    (tmp_path / "batch.json").write_text(numbered(3).model_dump_json())
    metrics = trainer.step(numbered(3), "policy")
    output = subprocess.run(
        [
            sys.executable,
            "-c",
            STEP_IN_ANOTHER_PROCESS,
            wide_model,
            tmp_path / "state",
            tmp_path / "batch.json",
            str(torch.get_num_threads()),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    version, _ = trainer.weights()
    assert output == [version.digest, metrics.loss.hex(), metrics.gradient_norm.hex()]
    assert version.number == 4


def test_moments_reset_between_warm_start_and_reinforcement(wide_model: Path) -> None:
    trainer = make(wide_model)
    first = trainer.step(numbered(0), "supervised")
    trainer.reset_optimiser()
    assert trainer.step(numbered(0), "policy").learning_rate == first.learning_rate
    assert trainer.num_versions == 2


@pytest.mark.parametrize("name", ["weights", "first_moments", "second_moments", "random"])
def test_one_flipped_bit_is_told_of_and_changes_nothing(
    wide_model: Path, tmp_path: Path, name: str
) -> None:
    trainer = make(wide_model)
    trainer.save(tmp_path / "state")
    path = tmp_path / "state" / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    trainer.step(numbered(0), "policy")
    before = trainer.weights()[0]
    with pytest.raises(UserError, match=rf"{name}\.safetensors is damaged: its digest"):
        trainer.load(tmp_path / "state")
    assert trainer.weights()[0] == before


def test_a_cut_off_file_a_missing_record_and_another_model_are_told_of(
    wide_model: Path, tmp_path: Path
) -> None:
    trainer = make(wide_model)
    with pytest.raises(UserError, match="no trainer checkpoint"):
        trainer.load(tmp_path)
    trainer.save(tmp_path / "state")
    path = tmp_path / "state" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        trainer.load(tmp_path / "state")
    (tmp_path / "wide").mkdir()
    other = make(write_model(tmp_path / "wide", {**WIDE, "intermediate_size": 192}))
    other.save(tmp_path / "state")
    with pytest.raises(UserError, match=r"another model: model\.layers\.0\.mlp\.gate_proj"):
        trainer.load(tmp_path / "state")


def test_other_arithmetic_is_told_of(wide_model: Path, tmp_path: Path) -> None:
    trainer = make(wide_model)
    trainer.save(tmp_path / "state")
    record = json.loads((tmp_path / "state" / "state.json").read_text())
    record["arithmetic"] = "another"
    (tmp_path / "state" / "state.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="last bits"):
        trainer.load(tmp_path / "state")
