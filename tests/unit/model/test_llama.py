"""Our Llama against Transformers' on small random configurations."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from journeyman.model import Llama, ModelConfig, causal_attend
from journeyman.types import UserError

SMALL = dict(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def twins(**changes):
    torch.manual_seed(5)
    theirs = LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = Llama(ModelConfig.from_hugging_face(theirs.config.to_dict()))
    state = {k: v for k, v in theirs.state_dict().items() if k in ours.state_dict()}
    ours.load_state_dict(state, strict=True)
    return ours, theirs


def our_logits(model, sequences):
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence))
    positions = torch.cat([torch.arange(len(s)) for s in sequences])
    hidden = model(torch.cat(sequences), positions, causal_attend(starts))
    return hidden @ model.lm_head_weight.T


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"head_dim": 16}])
def test_logits_equal_transformers(rope, changes):
    ours, theirs = twins(rope_parameters=ROPES[rope], **changes)
    sequences = [torch.randint(0, 131, (n,)) for n in (1, 37, 200)]
    with torch.no_grad():
        mine = our_logits(ours, sequences)
        expected = torch.cat([theirs(s[None]).logits[0] for s in sequences])
    torch.testing.assert_close(mine, expected, rtol=2e-4, atol=2e-4)


def test_gradients_equal_transformers():
    ours, theirs = twins()
    sequence = torch.randint(0, 131, (60,))
    our_logits(ours, [sequence]).square().mean().backward()
    theirs(sequence[None]).logits.square().mean().backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-3, atol=1e-5)


def test_bf16_forward_and_backward_stay_bf16():
    ours, _ = twins()
    ours = ours.to(torch.bfloat16)
    loss = our_logits(ours, [torch.arange(9)]).float().logsumexp(-1).mean()
    loss.backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in ours.parameters())


def test_old_spelling_of_rope_is_read():
    config = LlamaConfig(**SMALL).to_dict()
    config.pop("rope_parameters")
    config["rope_theta"] = 1234.0
    config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    rope = ModelConfig.from_hugging_face(config).rope
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 1234.0, 2.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"num_key_value_heads": 4}, "6 heads"),
    ],
)
def test_unsupported_models_are_refused_by_name(change, named):
    with pytest.raises(UserError, match=named):
        ModelConfig.from_hugging_face({**LlamaConfig(**SMALL).to_dict(), **change})


def test_missing_and_broken_config_files_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="no model at"):
        ModelConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        ModelConfig.load(tmp_path)
