"""How fast an engine decodes."""

import asyncio
import time
from pathlib import Path

from journeyman.inference.engine import Engine


def decode_throughput(
    model_dir: Path,
    *,
    sequences: int = 64,
    prompt: int = 40,
    new: int = 64,
    backend: str = "auto",
) -> float:
    """Sampled tokens per second of `sequences` requests that arrive together, each `new` tokens
    after a `prompt` of its own; prompts included in the time, weights loaded and warm."""
    kv_tokens = sequences * (prompt + new + 32)
    with Engine(model_dir, backend=backend, kv_tokens=kv_tokens, max_sequences=sequences) as engine:
        return asyncio.run(_measure(engine, sequences, prompt, new))


async def _measure(engine: Engine, sequences: int, prompt: int, new: int) -> float:
    async def request(number: int, tokens: int) -> None:
        # Distinct from the first token on: nothing is shared through the prefix cache.
        first = 1000 + number * (prompt + 1)
        ids = [(first + place) % engine.config.vocab_size for place in range(prompt)]
        await engine.generate(ids, max_tokens=tokens, temperature=1.0, seed=number)

    await request(sequences, 2)
    started = time.perf_counter()
    await asyncio.gather(*(request(number, new) for number in range(sequences)))
    return sequences * new / (time.perf_counter() - started)
