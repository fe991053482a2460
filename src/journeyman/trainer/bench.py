"""How fast the trainer is: forward and backward passes, on plain and on shared streams."""

import time
from pathlib import Path

import torch

from journeyman.trainer.trainer import Trainer
from journeyman.types import Batch, Sample, TokenStream

PLAIN = (8, 512)
"""Streams and tokens of each: no prefix in common, a loss on every token but the first."""


def train_throughput(model_dir: Path, repeats: int = 2) -> float:
    """Tokens per second of forward and backward passes over 8 streams of 512 tokens, every token
    in the loss; the best of `repeats` after one to warm up."""
    trainer = Trainer(model_dir, learning_rate=0.0)
    return _throughput(trainer, plain_batch(trainer.config.vocab_size), "supervised", repeats)


def shared_throughput(model_dir: Path, repeats: int = 1) -> float:
    """Stream tokens per second on groups of episodes that share prefixes: what packing gives."""
    trainer = Trainer(model_dir, learning_rate=0.0)
    return _throughput(trainer, group_batch(trainer.config.vocab_size), "policy", repeats)


def plain_batch(vocabulary: int, seed: int = 0) -> Batch:
    """8 random streams of 512 tokens."""
    count, length = PLAIN
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(vocabulary, (count, length), generator=generator).tolist()
    return Batch(step=0, samples=tuple(_sample(row, 1, 0) for row in rows))


def group_batch(vocabulary: int, seed: int = 0, num_groups: int = 2) -> Batch:
    """Groups of 8 episodes of 600 tokens: a system prompt of 200 shared by all, an instruction
    of 100 by the group, 40 sampled tokens after 150 of tool output, then 110 sampled."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    system = draw(200)
    samples = []
    for group in range(num_groups):
        prompt = system + draw(100)
        for index in range(8):
            row = prompt + draw(300)
            samples.append(_sample(row, 300, index, group=str(group), gap=(340, 490)))
    return Batch(step=0, samples=tuple(samples))


def _sample(
    row: list[int], first: int, index: int, group: str = "g", gap: tuple[int, int] = (0, 0)
) -> Sample:
    marked = [i >= first and not gap[0] <= i < gap[1] for i in range(len(row))]
    return Sample(
        episode=f"{group}-{index}",
        group=group,
        advantage=1.0 if index % 2 else -1.0,
        stream=TokenStream(
            token_ids=tuple(row),
            loss_mask=tuple(marked),
            logprobs=tuple(-8.0 if on else 0.0 for on in marked),
            versions=tuple(0 if on else -1 for on in marked),
        ),
    )


def _throughput(trainer: Trainer, batch: Batch, loss: str, repeats: int) -> float:
    tokens = sum(len(sample.stream.token_ids) for sample in batch.samples)
    best = 0.0
    for _ in range(repeats + 1):
        started = time.perf_counter()
        trainer.backward(batch, "policy" if loss == "policy" else "supervised")
        best = max(best, tokens / (time.perf_counter() - started))
    return best
