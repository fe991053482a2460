"""How many tokens messages take, so that no episode outgrows its budget."""

from collections.abc import Sequence
from typing import Protocol

from journeyman.chat import ChatFormat, render_tools
from journeyman.types import Message, ToolSpec


class TokenCounter(Protocol):
    """Counts for one model's chat format."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """Tokens of a whole prompt, up to the assistant's header."""
        ...

    def extension(self, messages: Sequence[Message]) -> int:
        """Tokens that these messages add after a closed reply, the next header included."""
        ...


class ExactCounter:
    """Counts with the tokenizer of the model that is served."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        return len(self._chat.render(messages, tools))

    def extension(self, messages: Sequence[Message]) -> int:
        return len(self._chat.extend(messages))


class EstimatedCounter:
    """For models whose tokenizer is not here: one token for two bytes, which few texts exceed."""

    _FRAME = 8

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        return self.extension(messages) + len(render_tools("", tools).encode()) // 2

    def extension(self, messages: Sequence[Message]) -> int:
        return sum(len(m.content.encode()) // 2 + self._FRAME for m in messages) + self._FRAME
