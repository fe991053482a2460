"""The fetched SmolLM2: tokenizer, weights and template as Transformers sees them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from journeyman.model import causal_attend
from journeyman.model.checkpoint import digest, load, load_state

TEXT = "def mean(values):\n    return sum(values) / len(values)  # 12.5 on average\n" * 4


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    return AutoTokenizer.from_pretrained(model_dir)


def test_logits_equal_transformers_in_float32(model_dir, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt").input_ids[0]
    ours = load(model_dir, torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        hidden = ours(ids, torch.arange(len(ids)), causal_attend([0, len(ids)]))
        mine = hidden @ ours.lm_head_weight.T
        expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3)


def test_weights_are_bf16_and_named_as_transformers_names_them(model_dir):
    state = load_state(model_dir)
    theirs = AutoModelForCausalLM.from_pretrained(model_dir)
    assert {t.dtype for t in state.values()} == {torch.bfloat16}
    assert set(theirs.state_dict()) - set(state) == {"lm_head.weight"}
    assert digest(state) == digest({name: theirs.state_dict()[name] for name in state})


def test_digits_stand_alone_even_after_indentation(tokenizer):
    # As in SmolLM2's own tokenizer: digits are split off first, so the whole run of
    # whitespace before one is a single piece.
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("x = 2024\n    7").input_ids)
    assert tokens == ["x", "Ġ=", "Ġ", "2", "0", "2", "4", "ĊĠĠĠĠ", "7"]
    assert tokenizer("Hello world").input_ids == [19556, 905]


def test_special_tokens_and_chat_template(tokenizer):
    assert tokenizer("<|im_start|>user<|im_end|>").input_ids == [1, 4093, 2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", [TEXT, "é 日本 \t\n\n  x=1_000.5", " lead", "\n\n\n", "🦊 'll"])
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text
