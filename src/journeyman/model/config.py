"""The shape of a model, read from a Hugging Face `config.json`."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from journeyman.types import UserError, Value

ROPE_TYPES = ("default", "linear", "llama3")


class RopeConfig(Value):
    """Rotary positions. `factor` and below matter to the scaled types only."""

    kind: Literal["default", "linear", "llama3"] = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


class ModelConfig(Value):
    """A decoder of the Llama family: RMS norms, grouped-query attention, gated SiLU MLP."""

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    norm_eps: float = 1e-5
    max_positions: int = 2048
    tied_embeddings: bool = False
    rope: RopeConfig = RopeConfig()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide into {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.head_dim}")
        return self

    @classmethod
    def load(cls, model_dir: Path) -> "ModelConfig":
        """Read `model_dir/config.json`. Raises UserError when it is missing or unsupported."""
        path = model_dir / "config.json"
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise UserError(
                f"no model at {model_dir}: {path.name} is missing",
                "fetch one with `journeyman model fetch smollm2-135m`, or name another directory",
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not JSON: {error}", "fetch the model again") from error
        return cls.from_hugging_face(raw, source=str(path))

    @classmethod
    def from_hugging_face(cls, raw: dict[str, Any], source: str = "config.json") -> "ModelConfig":
        """From the parsed `config.json` of Transformers, in its old or new spelling."""
        _refuse_unsupported(raw, source)
        try:
            heads = raw["num_attention_heads"]
            eos = raw.get("eos_token_id")
            return cls(
                vocab_size=raw["vocab_size"],
                hidden_size=raw["hidden_size"],
                intermediate_size=raw["intermediate_size"],
                num_layers=raw["num_hidden_layers"],
                num_heads=heads,
                num_kv_heads=raw.get("num_key_value_heads") or heads,
                head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
                norm_eps=raw.get("rms_norm_eps", 1e-6),
                max_positions=raw.get("max_position_embeddings", 2048),
                tied_embeddings=raw.get("tie_word_embeddings", False),
                rope=_rope(raw),
                bos_token_id=raw.get("bos_token_id"),
                eos_token_ids=tuple(eos if isinstance(eos, list) else [] if eos is None else [eos]),
            )
        except KeyError as error:
            raise UserError(f"{source} lacks the key {error}", "fetch the model again") from error
        except ValidationError as error:
            raise UserError(f"{source} is not usable: {error}", "fetch the model again") from error


def _refuse_unsupported(raw: dict[str, Any], source: str) -> None:
    cure = "the Llama family without biases is supported; name such a model"
    if raw.get("model_type") != "llama":
        raise UserError(f"{source} says model_type {raw.get('model_type')!r}", cure)
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise UserError(f"{source} sets {key}", cure)
    if raw.get("hidden_act", "silu") != "silu":
        raise UserError(f"{source} says hidden_act {raw['hidden_act']!r}", cure)
    kind = _rope_settings(raw).get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise UserError(f"{source} asks for rope_type {kind!r}", f"known: {', '.join(ROPE_TYPES)}")


def _rope_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Transformers 5 says `rope_parameters`; before, `rope_scaling` and `rope_theta` apart."""
    settings = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    if "type" in settings:
        settings.setdefault("rope_type", settings["type"])
    settings.setdefault("rope_theta", raw.get("rope_theta", 10_000.0))
    return settings


def _rope(raw: dict[str, Any]) -> RopeConfig:
    settings = _rope_settings(raw)
    original = settings.get("original_max_position_embeddings")
    return RopeConfig(
        kind=settings.get("rope_type", "default"),
        theta=settings["rope_theta"],
        factor=settings.get("factor", 1.0),
        low_freq_factor=settings.get("low_freq_factor", 1.0),
        high_freq_factor=settings.get("high_freq_factor", 4.0),
        original_context=original or raw.get("max_position_embeddings", 2048),
    )
