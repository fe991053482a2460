"""Rebuilding a byte-level BPE tokenizer from the vocabulary inside a GGUF file."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from journeyman.model.gguf_file import GGUFModel
from journeyman.types import UserError

CONTROL_TOKEN = 3
"""GGUF's token type for tokens that never come out of plain text."""


def write_tokenizer(model: GGUFModel, directory: Path) -> None:
    """`tokenizer.json`, `tokenizer_config.json` and the chat template, in `directory`."""
    tokens: list[str] = model.field("tokenizer.ggml.tokens")
    text = build_tokenizer(model).to_str(pretty=True)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    special = {
        "bos_token": _token(model, tokens, "bos"),
        "eos_token": _token(model, tokens, "eos"),
        "unk_token": _token(model, tokens, "unknown"),
        "pad_token": _token(model, tokens, "padding"),
    }
    special = {key: token for key, token in special.items() if token is not None}
    template = model.field("tokenizer.chat_template")
    config: dict[str, Any] = {
        # The class that takes tokenizer.json as it is. GPT2Tokenizer would rebuild the
        # splitting of text itself and lose the separate digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.field("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
        **special,
    }
    _write_json(directory / "tokenizer_config.json", config)
    _write_json(directory / "special_tokens_map.json", special)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def build_tokenizer(model: GGUFModel) -> Tokenizer:
    """SmolLM's tokenizer: digits stand alone, then GPT-2's byte-level splitting and BPE."""
    kind = (model.field("tokenizer.ggml.model"), model.field("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UserError(
            f"{model.path} holds a tokenizer of the kind {kind[0]}/{kind[1]}",
            "only gpt2/smollm can be rebuilt",
        )
    tokens: list[str] = model.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in model.field("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # tokenizers' type stubs call these properties read-only.
    settings: Any = tokenizer
    settings.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    settings.decoder = decoders.ByteLevel()
    types: list[int] = model.field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind_number in zip(tokens, types, strict=True)
            if kind_number == CONTROL_TOKEN
        ]
    )
    return tokenizer


def _token(model: GGUFModel, tokens: list[str], role: str) -> str | None:
    index = model.field(f"tokenizer.ggml.{role}_token_id")
    return None if index is None else tokens[index]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
