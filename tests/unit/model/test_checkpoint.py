"""Checkpoints: round trips, shards, digests, and what is left after a failure."""

import json
import resource

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from journeyman.model import Llama, ModelConfig
from journeyman.model.checkpoint import digest, load, load_state, replaced_directory, save
from journeyman.types import UserError


@pytest.fixture
def small(tmp_path):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    directory = tmp_path / "small"
    directory.mkdir()
    config.save_pretrained(directory)
    torch.manual_seed(0)
    model = Llama(ModelConfig.load(directory)).to(torch.bfloat16)
    save(model, directory, tokenizer_from=directory)
    return directory, model


def test_round_trip_is_exact_and_transformers_opens_it(small):
    directory, model = small
    assert digest(load_state(directory)) == digest(model.state_dict())
    assert digest(load(directory).state_dict()) == digest(model.state_dict())
    theirs = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    assert torch.equal(theirs["lm_head.weight"], model.lm_head_weight)


def test_shards_load_as_one(small):
    directory, model = small
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = sorted(state)
    (directory / "model.safetensors").unlink()
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({name: state[name] for name in members}, directory / file)
    weight_map = {name: file for file, members in parts.items() for name in members}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert digest(load_state(directory)) == digest(state)


def test_digest_notices_one_bit_a_name_and_a_shape():
    state = {"a": torch.zeros(4, dtype=torch.bfloat16), "b": torch.ones(2)}
    changed = {**state, "a": torch.tensor([0.0, -0.0, 0.0, 0.0], dtype=torch.bfloat16)}
    renamed = {"a": state["a"], "c": state["b"]}
    reshaped = {**state, "a": state["a"].view(2, 2)}
    assert len({digest(s) for s in (state, changed, renamed, reshaped)}) == 4
    assert digest(dict(reversed(state.items()))) == digest(state)


def test_a_missing_or_misshapen_tensor_is_named(small):
    directory, model = small
    state = dict(model.state_dict())
    removed = state.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(UserError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj"):
        save(state, directory, tokenizer_from=directory)
    state["model.layers.1.mlp.up_proj.weight"] = removed.T
    with pytest.raises(UserError, match=r"is \[16, 24\], expected \[24, 16\]"):
        save(state, directory, tokenizer_from=directory)
    state["model.layers.1.mlp.up_proj.weight"] = removed
    state["lm_head.weight"] = removed
    with pytest.raises(UserError, match="unknown tensor lm_head"):
        save(state, directory, tokenizer_from=directory)
    assert digest(load_state(directory)) == digest(model.state_dict())


def test_a_damaged_file_is_named(small):
    directory, _ = small
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"model\.safetensors is not a readable"):
        load(directory)


def test_a_full_disk_is_a_user_error_and_the_old_checkpoint_stays(small):
    directory, model = small
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    larger = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write(?s:.*)nothing was changed"):
            save(larger, directory, tokenizer_from=directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert [path.name for path in directory.parent.iterdir()] == ["small"]


def test_a_failed_write_leaves_the_old_directory_and_no_scratch(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("kept")
    with pytest.raises(UserError, match="No space left"), replaced_directory(target) as scratch:
        (scratch / "new").write_text("half")
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "old").read_text() == "kept"
