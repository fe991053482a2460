"""Chunks of sequences as the tensors of one step."""

import numpy as np
import torch

from journeyman.inference.scheduler import Chunk
from journeyman.inference.sequence import Sequence
from journeyman.model import BLOCK, StepBatch
from journeyman.model.sampling import splitmix64


def build_batch(chunks: list[Chunk]) -> StepBatch:
    """The step that computes `chunks`; rows are sampled in the order of the sampled chunks."""
    lengths = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int32)
    cached = np.array([chunk.sequence.num_cached for chunk in chunks], dtype=np.int32)
    starts = np.zeros(len(chunks) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    token_ids: list[int] = []
    for chunk in chunks:
        first = chunk.sequence.num_cached
        token_ids += chunk.sequence.tokens[first : first + chunk.num_tokens]
    owner = np.repeat(np.arange(len(chunks)), lengths)
    positions = np.arange(starts[-1], dtype=np.int32) - starts[owner] + cached[owner]
    tables = _block_tables(chunks)
    slots = tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    sampled = [index for index, chunk in enumerate(chunks) if chunk.is_sampled]
    sequences = [chunks[index].sequence for index in sampled]
    return StepBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int32),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots.astype(np.int32)),
        query_starts=torch.from_numpy(starts),
        context_lens=torch.from_numpy(cached + lengths),
        block_tables=torch.from_numpy(tables),
        sample_rows=torch.from_numpy(starts[1:][sampled] - 1),
        temperature=torch.tensor([s.temperature for s in sequences], dtype=torch.float32),
        top_p=torch.tensor([s.top_p for s in sequences], dtype=torch.float32),
        seeds=torch.from_numpy(_token_seeds(sequences)),
    )


def _token_seeds(sequences: list[Sequence]) -> np.ndarray:
    """int64 [R]: a function of the request's seed and the number of tokens it has sampled, so
    that preemption and batching change nothing."""
    requests = np.array([s.seed for s in sequences], dtype=np.uint64)
    counts = np.array([len(s.logprobs) for s in sequences], dtype=np.uint64)
    return splitmix64(splitmix64(requests) ^ splitmix64(counts)).view(np.int64)


def _block_tables(chunks: list[Chunk]) -> np.ndarray:
    widest = max(len(chunk.sequence.blocks) for chunk in chunks)
    tables = np.zeros((len(chunks), widest), dtype=np.int32)
    for row, chunk in zip(tables, chunks, strict=True):
        row[: len(chunk.sequence.blocks)] = chunk.sequence.blocks
    return tables
