"""A sampler that plays given calls through the real loop, for supervised episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from journeyman.chat import ChatFormat, format_call
from journeyman.types import Completion, CompletionRequest

LAST_WORD = "Done."


class ReplaySampler:
    """Answers the n-th request of any conversation with the n-th call, written as the model is
    taught to write it; then with a plain last word.

    The ids are what the model's own tokenizer gives, so a replayed episode is a training sample.
    Log-probabilities are 0.0: nothing was sampled.
    """

    def __init__(
        self, chat: ChatFormat, calls: Sequence[tuple[str, Mapping[str, Any]]], version: int = 0
    ) -> None:
        self._chat = chat
        self._texts = [format_call(name, arguments) for name, arguments in calls]
        self._version = version

    async def complete(self, request: CompletionRequest) -> Completion:
        """As Sampler.complete; a call that does not fit `max_tokens` is cut off as a model's."""
        turn = sum(message.role == "assistant" for message in request.messages)
        text = self._texts[turn] if turn < len(self._texts) else LAST_WORD
        ids = [*self._chat.encode(text), self._chat.end_of_turn]
        fits = len(ids) <= request.max_tokens
        ids = ids[: request.max_tokens]
        return Completion(
            message=self._chat.parse(self._chat.decode_reply(ids)),
            stop="end_of_turn" if fits else "length",
            prompt_token_ids=tuple(self._chat.render(request.messages, request.tools)),
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            versions=(self._version,) * len(ids),
        )
