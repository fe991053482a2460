"""The token stream of a conversation: token in, token out, nothing is tokenised twice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from journeyman.inference.generation import Generation
from journeyman.types import CompletionRequest, Message, TokenStream, ToolSpec


class TurnFormat(Protocol):
    """How messages become token ids and back (`journeyman.chat.ChatFormat`)."""

    @property
    def end_of_turn(self) -> int: ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]: ...

    def extend(self, messages: Sequence[Message]) -> list[int]: ...

    def close_turn(self) -> list[int]: ...

    def parse(self, text: str) -> Message: ...

    def decode_reply(self, ids: Sequence[int]) -> str: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def encode(self, text: str) -> list[int]: ...


@dataclass
class Stream:
    """One unbroken stream while it grows; see `types.TokenStream`."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add_given(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample."""
        self.token_ids += ids
        self.loss_mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def add_sampled(self, generation: Generation) -> None:
        """Append what the model sampled."""
        self.token_ids += generation.token_ids
        self.loss_mask += [True] * len(generation.token_ids)
        self.logprobs += generation.logprobs
        self.versions += generation.versions

    def frozen(self) -> TokenStream:
        """As the value that episodes hold."""
        return TokenStream(
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
        )


class Conversation:
    """The messages that have been seen and the ids they are, sampled replies byte for byte.

    When a request's messages extend those, only the new ones are tokenised. An edited history
    starts a new stream.
    """

    def __init__(self, chat_format: TurnFormat) -> None:
        self._format = chat_format
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[ToolSpec, ...] = ()
        self._is_open = False
        """The last reply was cut off before its end-of-turn token."""
        self._finished: list[TokenStream] = []
        self._stream = Stream()
        self.is_busy = False

    def begin(self, request: CompletionRequest) -> tuple[list[int], bool]:
        """The prompt ids of `request`, and whether it starts a new stream although the
        conversation had one. Changes nothing: a request that fails leaves no trace."""
        new = self._new_messages(request)
        if new is None:
            return self._format.render(request.messages, request.tools), bool(self._messages)
        closing = self._format.close_turn() if self._is_open else []
        return [*self._stream.token_ids, *closing, *self._format.extend(new)], False

    def commit(
        self, request: CompletionRequest, prompt_ids: Sequence[int], generation: Generation
    ) -> Message:
        """Record the reply. Returns it as a message."""
        if self._new_messages(request) is None:
            if self._messages:
                self._finished.append(self._stream.frozen())
            self._stream = Stream()
        self._stream.add_given(prompt_ids[len(self._stream.token_ids) :])
        self._stream.add_sampled(generation)
        reply = self._format.parse(self._format.decode_reply(generation.token_ids))
        self._messages = (*request.messages, reply)
        self._tools = request.tools
        self._is_open = generation.stop != "stop"
        return reply

    @property
    def messages(self) -> tuple[Message, ...]:
        """What has been seen and said."""
        return self._messages

    def streams(self) -> tuple[TokenStream, ...]:
        """All streams so far, the current one last."""
        current = (self._stream.frozen(),) if self._messages else ()
        return (*self._finished, *current)

    def _new_messages(self, request: CompletionRequest) -> tuple[Message, ...] | None:
        """What `request` adds to the messages seen, or None when it does not extend them."""
        seen = len(self._messages)
        new = request.messages[seen:]
        extends = (
            seen > 0
            and len(new) > 0
            and request.tools == self._tools
            and all(map(_same, self._messages, request.messages))
            # An assistant message that was not sampled here is text without known ids.
            and all(message.role != "assistant" for message in new)
        )
        return new if extends else None


def _same(one: Message, other: Message) -> bool:
    """Equal as the model sees them: tool calls are part of an assistant's content."""
    return one.role == other.role and one.content == other.content
