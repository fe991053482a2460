"""OpenAI's chat completions as this project's completion requests, and back.

Fields that would be ignored are refused: a client must not believe that they worked. What the
project adds: `conversation` in the request (the token stream to continue), `token_ids`,
`prompt_token_ids` and `versions` in each choice.
"""

import json
import time
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, model_validator

from journeyman.chat import format_call
from journeyman.chat.tools import OPEN
from journeyman.types import Completion, CompletionRequest, Message, ToolSpec, UserError

FINISH = {"end_of_turn": "stop", "length": "length", "context": "length", "cancelled": "stop"}


class Strict(BaseModel):
    """Refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPart(Strict):
    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    name: str
    arguments: str
    """A JSON object, as text."""


class CallPart(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CallPart] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: None = None

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionSpec(Strict):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: Literal[False] | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionSpec


class StreamOptions(Strict):
    include_usage: bool = False


class ChatRequest(Strict):
    """The body of `POST /v1/chat/completions`."""

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] = []
    tool_choice: Literal["auto"] | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    n: Literal[1] = 1
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    conversation: str | None = None

    @model_validator(mode="after")
    def _no_idle_field(self) -> "ChatRequest":
        if self.stream_options and not self.stream:
            raise ValueError("stream_options would have no effect without stream")
        return self

    def as_request(self, known: tuple[Message, ...], default_tokens: int) -> CompletionRequest:
        """`known` are the messages of the conversation so far: a reply that comes back in
        OpenAI's form is recognised as the one that was sampled, and keeps its exact text."""
        messages = [
            _recognise(given, known[index] if index < len(known) else None)
            for index, given in enumerate(self.messages)
        ]
        return CompletionRequest(
            messages=tuple(messages),
            tools=tuple(
                ToolSpec(
                    name=tool.function.name,
                    description=tool.function.description,
                    parameters=tool.function.parameters,
                )
                for tool in self.tools
            ),
            conversation=self.conversation or f"once-{uuid4()}",
            max_tokens=self.max_completion_tokens or self.max_tokens or default_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
        )


def _recognise(given: ChatMessage, recorded: Message | None) -> Message:
    if given.role == "assistant":
        if recorded and recorded.role == "assistant" and _same_reply(given, recorded):
            return recorded
        calls = [_written_out(call) for call in given.tool_calls or ()]
        return Message(role="assistant", content="\n".join(filter(None, [given.text(), *calls])))
    role = "system" if given.role == "developer" else given.role
    return Message(role=role, content=given.text(), tool_call_id=given.tool_call_id)


def _same_reply(given: ChatMessage, recorded: Message) -> bool:
    shown = reply_message(recorded)
    calls = [call.model_dump() for call in given.tool_calls or ()]
    return bool((given.text() or None) == shown["content"] and calls == shown.get("tool_calls", []))


def _written_out(call: CallPart) -> str:
    try:
        arguments = json.loads(call.function.arguments)
    except json.JSONDecodeError as error:
        raise UserError(
            f"the arguments of the call {call.id!r} are not JSON: {error}",
            "send back tool calls as they were received",
        ) from error
    return format_call(call.function.name, arguments)


def reply_message(reply: Message) -> dict[str, Any]:
    """An assistant message as OpenAI clients know it. Calls that could not be parsed stay in
    the text."""
    good = [call for call in reply.tool_calls if call.error is None]
    if not good or len(good) < len(reply.tool_calls):
        return {"role": "assistant", "content": reply.content or None}
    text = reply.content.partition(OPEN)[0].rstrip() if OPEN in reply.content else ""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in good
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def response(completion: Completion, asked: ChatRequest, tokens: list[str]) -> dict[str, Any]:
    """The body of the answer. `tokens` are the texts of the sampled ids, one each."""
    message = reply_message(completion.message)
    finish = "tool_calls" if "tool_calls" in message else FINISH[completion.stop]
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": finish,
        "logprobs": None,
        "prompt_token_ids": completion.prompt_token_ids,
        "token_ids": completion.token_ids,
        "versions": completion.versions,
    }
    if asked.logprobs:
        pairs = zip(tokens, completion.logprobs, strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in pairs
            ]
        }
    prompt, sampled = len(completion.prompt_token_ids), len(completion.token_ids)
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        },
    }
