"""One request inside the engine, from submission to its last token."""

from collections.abc import Callable
from dataclasses import dataclass, field

from journeyman.inference.blocks import Key
from journeyman.inference.generation import Generation, OnToken, Stop


@dataclass(eq=False)
class Sequence:
    """The known tokens of a request and where their keys and values are cached."""

    tokens: list[int]
    """Prompt, then what was sampled."""
    num_prompt: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_ids: frozenset[int]
    finish: Callable[[Generation | BaseException], None]
    """Called once, on the engine's thread."""
    on_token: OnToken | None = None
    """Called with each sampled token, on the engine's thread."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Tokens whose keys and values are in `blocks`."""
    keys: list[Key] = field(default_factory=list)
    """Of the full blocks of known tokens, as far as computed for the current version."""
    num_published: int = 0

    @property
    def num_uncached(self) -> int:
        """Known tokens that the model has not seen yet; 1 while decoding."""
        return len(self.tokens) - self.num_cached

    def append(self, token: int, logprob: float, version: int, context: int) -> Stop | None:
        """Add a sampled token. Returns why the sequence ends, if it does."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.stop_ids:
            return "stop"
        if len(self.logprobs) >= self.max_tokens:
            return "length"
        return "context" if len(self.tokens) >= context else None

    def generation(self, stop: Stop) -> Generation:
        """What was sampled."""
        return Generation(
            token_ids=tuple(self.tokens[self.num_prompt :]),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            stop=stop,
        )

    def forget_cache(self) -> list[int]:
        """Lose all cached keys and values, keep the tokens. Returns the blocks to deallocate."""
        blocks, self.blocks = self.blocks, []
        self.num_cached = 0
        self.num_published = 0
        return blocks
