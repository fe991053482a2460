"""Replies that are given instead of sampled: how an oracle speaks through the real agent loop."""

from collections.abc import Callable, Sequence

from journeyman.inference.chat_service import ChatService
from journeyman.inference.conversation import TurnFormat
from journeyman.inference.generation import Generation, OnToken
from journeyman.types import (
    Completion,
    CompletionRequest,
    EngineError,
    PolicyVersion,
    TokenStream,
)

SCRIPTED = PolicyVersion(number=0, digest="scripted", recipe="none")
"""No weights spoke. Log-probabilities of scripted tokens are 0: nothing was left to chance."""


class ScriptedEngine:
    """A `Generator` that says the texts of one script, one a call, each with its end of turn."""

    def __init__(self, chat_format: TurnFormat, texts: Sequence[str]) -> None:
        self._format = chat_format
        self._texts = list(texts)
        self._said = 0

    @property
    def version(self) -> PolicyVersion:
        """Number 0."""
        return SCRIPTED

    @property
    def problem(self) -> str | None:
        """None: a script has no weights that could be wrong."""
        return None

    def stats(self) -> dict[str, float]:
        """How many replies were said."""
        return {"replies": self._said}

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
        """The next text, cut at `max_tokens`. Raises EngineError when the script is over."""
        if self._said == len(self._texts):
            raise EngineError(
                f"the script of {len(self._texts)} replies is over and one more is asked for"
            )
        ids = [*self._format.encode(self._texts[self._said]), self._format.end_of_turn]
        self._said += 1
        kept = ids[:max_tokens]
        if on_token is not None:
            for token in kept:
                on_token(token)
        return Generation(
            token_ids=tuple(kept),
            logprobs=(0.0,) * len(kept),
            versions=(SCRIPTED.number,) * len(kept),
            stop="stop" if len(kept) == len(ids) else "length",
        )


class ScriptedSampler:
    """A `types.Sampler` in which every conversation follows a script of its own.

    `script_of` gives the texts of a conversation when its first request arrives.
    """

    def __init__(
        self, chat_format: TurnFormat, script_of: Callable[[CompletionRequest], Sequence[str]]
    ) -> None:
        self._format = chat_format
        self._script_of = script_of
        self._services: dict[str, ChatService] = {}

    async def complete(self, request: CompletionRequest) -> Completion:
        """The conversation's next reply. Raises EngineError when its script is over."""
        service = self._services.get(request.conversation)
        if service is None:
            engine = ScriptedEngine(self._format, self._script_of(request))
            service = self._services[request.conversation] = ChatService(engine, self._format)
        return await service.complete(request)

    def release(self, conversation: str) -> tuple[TokenStream, ...]:
        """Forget a conversation. Returns its streams; empty when it is not known."""
        service = self._services.pop(conversation, None)
        return service.release(conversation) if service else ()
