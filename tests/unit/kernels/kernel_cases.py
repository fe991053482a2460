"""Small models of awkward shapes, ragged batches, and a float64 reference."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from journeyman.model import BLOCK, Llama, ModelConfig, StepBatch, causal_attend
from journeyman.model.kernels import NativeBackend

CONFIGS = {
    "grouped": ModelConfig(
        vocab_size=1531,
        hidden_size=192,
        intermediate_size=272,
        num_layers=3,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_positions=512,
        tied_embeddings=True,
    ),
    "odd": ModelConfig(
        vocab_size=97,
        hidden_size=50,
        intermediate_size=37,
        num_layers=2,
        num_heads=10,
        num_kv_heads=2,
        head_dim=6,
        max_positions=512,
        tied_embeddings=False,
    ),
    "wide_heads": ModelConfig(
        vocab_size=800,
        hidden_size=64,
        intermediate_size=96,
        num_layers=1,
        num_heads=7,
        num_kv_heads=1,
        head_dim=144,
        max_positions=512,
        tied_embeddings=True,
    ),
}


def random_state(config: ModelConfig, seed: int = 0, scale: float = 1.5) -> dict[str, Tensor]:
    """bf16 weights whose logits are neither flat nor peaked."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Llama(config).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        wide = len(shape) == 2
        state[name] = (values * scale / shape[1] ** 0.5 if wide else 1 + values / 8).bfloat16()
    return state


def random_tokens(config: ModelConfig, count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()


def native(config: ModelConfig, isa: str | None = None, threads: int | None = None, blocks=64):
    backend = NativeBackend(config, isa=isa, threads=threads)
    backend.load(random_state(config))
    backend.allocate(blocks)
    return backend


def reference_logits(config: ModelConfig, state: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """float64 [T, V] of one whole sequence, nothing rounded but the weights."""
    model = Llama(config).double()
    doubles = {name: tensor.double() for name, tensor in state.items()}
    model.load_state_dict(doubles)
    with torch.no_grad():
        ids = torch.tensor(tokens)
        hidden = model(ids, torch.arange(len(ids)), causal_attend([0, len(ids)]))
        return hidden @ model.lm_head_weight.T


@dataclass
class Chunk:
    """New tokens of one sequence from position `first`, over the given blocks."""

    tokens: list[int]
    first: int = 0
    table: list[int] = field(default_factory=list)
    sample_all: bool = False


def make_batch(chunks: list[Chunk], temperature=1.0, top_p=1.0, seeds=None) -> StepBatch:
    """Samples after the last token of every chunk, or after every one of its tokens."""
    rows, slots, starts, sampled = [], [], [0], []
    for chunk in chunks:
        places = range(chunk.first, chunk.first + len(chunk.tokens))
        rows += list(zip(chunk.tokens, places, strict=True))
        slots += [chunk.table[p // BLOCK] * BLOCK + p % BLOCK for p in places]
        starts.append(len(rows))
        if chunk.sample_all:
            sampled += range(starts[-2], starts[-1])
        elif chunk.tokens:
            sampled.append(starts[-1] - 1)
    width = max((len(chunk.table) for chunk in chunks), default=1)
    tables = [chunk.table + [0] * (width - len(chunk.table)) for chunk in chunks]
    int32, count = torch.int32, len(sampled)
    return StepBatch(
        token_ids=torch.tensor([token for token, _ in rows], dtype=int32),
        positions=torch.tensor([place for _, place in rows], dtype=int32),
        slots=torch.tensor(slots, dtype=int32),
        query_starts=torch.tensor(starts, dtype=int32),
        context_lens=torch.tensor([c.first + len(c.tokens) for c in chunks], dtype=int32),
        block_tables=torch.tensor(tables, dtype=int32).reshape(len(chunks), width),
        sample_rows=torch.tensor(sampled, dtype=int32),
        temperature=torch.full((count,), float(temperature)),
        top_p=torch.full((count,), float(top_p)),
        seeds=torch.tensor(list(range(count) if seeds is None else seeds), dtype=torch.int64),
    )


def repeated(batch: StepBatch, count: int) -> StepBatch:
    """The one sampled row of `batch`, sampled `count` times, with seeds 0, 1, ..."""
    return replace(
        batch,
        sample_rows=batch.sample_rows.repeat(count),
        temperature=batch.temperature.repeat(count),
        top_p=batch.top_p.repeat(count),
        seeds=torch.arange(count),
    )


def score_whole(backend: NativeBackend, tokens: list[int], table: list[int]) -> Tensor:
    """Logprobs of tokens[1:] from one whole prefill."""
    batch = make_batch([Chunk(tokens[:-1], 0, table, sample_all=True)])
    return backend.score(batch, torch.tensor(tokens[1:], dtype=torch.int32)).logprobs
