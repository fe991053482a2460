"""The contract between an agent and a model, over HTTP or through a Ray actor."""

from typing import Literal, Protocol

from pydantic import Field

from journeyman.types.message import Message, ToolSpec
from journeyman.types.value import Value


class CompletionRequest(Value):
    """Ask for one assistant message.

    `conversation` names the token stream: when `messages` extend what that conversation holds,
    the server splices the ids it sampled and tokenises only what is new.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    conversation: str
    max_tokens: int = Field(gt=0)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None


class Completion(Value):
    """One sampled assistant message with the exact tokens.

    `prompt_token_ids` are all ids the model saw before the first sampled one; `token_ids`
    [n] are sampled, with `logprobs` [n] of the distribution they were sampled from (natural log)
    and the policy `versions` [n] that computed them. `token_ids` includes the end-of-turn token
    when the model produced it.
    """

    message: Message
    stop: Literal["end_of_turn", "length", "context", "cancelled"]
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


class Sampler(Protocol):
    """Anything that completes a conversation."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """Raises EngineError when no completion can be had."""
        ...
