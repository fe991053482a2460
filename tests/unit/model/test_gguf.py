"""The GGUF reader against Transformers' own de-quantising loader, on a small quantised file."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from transformers import AutoModelForCausalLM, GgufConfig

from journeyman.model import ModelConfig
from journeyman.model.gguf_file import GGUFModel
from journeyman.types import UserError

WIDTH, HEADS, KV_HEADS, MLP, VOCABULARY = 128, 8, 2, 192, 96
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH * KV_HEADS // HEADS, WIDTH),
    "attn_v": (WIDTH * KV_HEADS // HEADS, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (MLP, WIDTH),
    "ffn_up": (MLP, WIDTH),
    "ffn_down": (WIDTH, MLP),
}


def write_model(path, architecture="llama"):
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(VOCABULARY)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)

    def add(name, shape, kind):
        values = rng.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    kinds = gguf.GGMLQuantizationType
    add("token_embd.weight", (VOCABULARY, WIDTH), kinds.Q8_0)
    add("output_norm.weight", (WIDTH,), kinds.F32)
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}.weight", (WIDTH,), kinds.F32)
        for name, shape in SHAPES.items():
            add(f"blk.{layer}.{name}.weight", shape, kinds.Q4_1 if layer else kinds.Q5_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_weights_equal_transformers_dequantisation(tmp_path):
    write_model(tmp_path / "tiny.gguf")
    model = GGUFModel(tmp_path / "tiny.gguf")
    ours = dict(model.tensors())
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file="tiny.gguf",
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    ).state_dict()
    assert set(theirs) - set(ours) == {"lm_head.weight"}
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_configuration_is_complete(tmp_path):
    write_model(tmp_path / "tiny.gguf")
    raw = GGUFModel(tmp_path / "tiny.gguf").config()
    config = ModelConfig.from_hugging_face(raw)
    assert config.tied_embeddings
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, HEADS, KV_HEADS)
    assert (config.norm_eps, config.rope.theta, config.max_positions) == (1e-5, 10_000.0, 512)


def test_another_architecture_or_no_gguf_is_refused(tmp_path):
    write_model(tmp_path / "other.gguf", architecture="falcon")
    with pytest.raises(UserError, match="falcon"):
        GGUFModel(tmp_path / "other.gguf")
    (tmp_path / "noise.gguf").write_bytes(b"noise" * 100)
    with pytest.raises(UserError, match="not a readable GGUF"):
        GGUFModel(tmp_path / "noise.gguf")
