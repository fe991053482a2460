"""A small random Llama on disk, and token streams with shared prefixes."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from journeyman.model import Llama, ModelConfig, checkpoint
from journeyman.types import Batch, Sample, TokenStream

VOCABULARY = 61
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other gain nothing on models this small, and lose a lot on a
    busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


WIDE = {
    **CONFIG,
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
"""Widths that the native passes support; several are no multiple of their panels of 48."""


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("native"), WIDE, std=0.12)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"), CONFIG)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("untied"), {**CONFIG, "tie_word_embeddings": False})


def write_model(directory: Path, config: dict[str, object], std: float = 0.3) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    torch.manual_seed(7)
    model = Llama(ModelConfig.load(directory))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
            else:
                parameter.uniform_(0.5, 1.5)
    checkpoint.write_weights(model.state_dict(), directory)
    return directory


def sample(
    tokens: Sequence[int],
    sampled: Sequence[int],
    *,
    logprobs: dict[int, float] | None = None,
    advantage: float = 0.0,
    version: int = 0,
    name: str = "e",
) -> Sample:
    """A sample whose positions `sampled` are marked."""
    marked = set(sampled)
    given = logprobs or {}
    return Sample(
        episode=name,
        group="g",
        advantage=advantage,
        stream=TokenStream(
            token_ids=tuple(tokens),
            loss_mask=tuple(i in marked for i in range(len(tokens))),
            logprobs=tuple(given.get(i, 0.0) for i in range(len(tokens))),
            versions=tuple(version if i in marked else -1 for i in range(len(tokens))),
        ),
    )


def batch(*samples: Sample, step: int = 1) -> Batch:
    return Batch(step=step, samples=samples)


SampleMaker = Callable[..., Sample]
