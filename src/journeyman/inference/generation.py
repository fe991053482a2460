"""What is asked of an engine and what comes back, in tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from journeyman.types import PolicyVersion

Stop = Literal["stop", "length", "context"]
"""A stop id was sampled, `max_tokens` was reached, or the context window is full."""


OnToken = Callable[[int], None]
"""Told of each sampled token as it comes."""


@dataclass(frozen=True)
class Generation:
    """n sampled tokens. `token_ids` ends with the stop id when `stop` is "stop"."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log, of the distribution each token was sampled from."""
    versions: tuple[int, ...]
    """The policy version that computed each token."""
    stop: Stop


class Generator(Protocol):
    """Anything that continues token streams."""

    @property
    def version(self) -> PolicyVersion:
        """The weights that the next token comes from."""
        ...

    @property
    def problem(self) -> str | None:
        """Why nothing is sampled at present; None when all is well."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters and present load."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
        on_token: OnToken | None = None,
    ) -> Generation:
        """Continue `prompt_ids`; `on_token` is called on the caller's event loop.

        Cancelling the call frees what it holds. Raises EngineError.
        """
        ...
