"""Models of other makers, over OpenAI's chat completions.

Our own inference server is spoken to with `journeyman.inference.client`, which keeps token ids.
"""

import json
import os
from types import TracebackType
from typing import Any, Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from journeyman.chat import format_call, parse_reply
from journeyman.types import (
    Completion,
    CompletionRequest,
    EngineError,
    Message,
    ToolCall,
    ToolSpec,
    UserError,
)

KEY_VARIABLE = "OPENAI_API_KEY"
_TIMEOUT_S = 600.0


class _Foreign(BaseModel):
    """What others send may hold more than we read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Function(_Foreign):
    name: str
    arguments: str = "{}"


class _Call(_Foreign):
    id: str
    function: _Function


class _Reply(_Foreign):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Foreign):
    message: _Reply
    finish_reason: str | None = None


class _Answer(_Foreign):
    choices: list[_Choice]


class OpenAISampler:
    """A `types.Sampler` over any OpenAI-compatible endpoint, tools as that API has them.

    Such endpoints give no token ids of the policy: completions carry none, and an episode of
    theirs has no token streams. Use as an async context manager. The key, if one is needed, is
    read from OPENAI_API_KEY.
    """

    def __init__(
        self, url: str, model: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        key = os.environ.get(KEY_VARIABLE)
        self._url = url.rstrip("/")
        self._model = model
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=_TIMEOUT_S,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def complete(self, request: CompletionRequest) -> Completion:
        """See `types.Sampler`. Raises UserError when the endpoint refuses the request."""
        choice = await self._ask(_body(self._model, request))
        return Completion(
            message=_message(choice.message),
            stop=_stop(choice.finish_reason),
            prompt_token_ids=(),
            token_ids=(),
            logprobs=(),
            versions=(),
        )

    async def _ask(self, body: dict[str, Any]) -> _Choice:
        try:
            answer = await self._http.post(f"{self._url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            raise EngineError(
                f"the model at {self._url} cannot be reached: {error!r}", "check --model-url"
            ) from error
        if answer.is_client_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise UserError(
                f"the model at {self._url} refuses: {answer.status_code} {answer.text[:1000]}",
                f"check --model-url, --model and {KEY_VARIABLE}",
            )
        try:
            answer.raise_for_status()
            return _Answer.model_validate_json(answer.content).choices[0]
        except (httpx.HTTPStatusError, ValidationError, IndexError) as error:
            raise EngineError(
                f"the model at {self._url} answered {answer.status_code}: {answer.text[:1000]}"
            ) from error


def _body(model: str, request: CompletionRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire_message(message) for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
    if request.seed is not None:
        body["seed"] = request.seed
    return body


def _wire_tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _wire_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        call = message.tool_call_id
        return {"role": "tool", "content": message.content, "tool_call_id": call}
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    text = message.content.partition("<tool_call>")[0].strip()
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name or "?", "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": text or None, "tool_calls": calls}


def _message(reply: _Reply) -> Message:
    """As our own models would have written it: calls in the text, and parsed from there."""
    text = reply.content or ""
    if not reply.tool_calls:
        return parse_reply(text)
    calls = tuple(_call(call) for call in reply.tool_calls)
    written = [format_call(call.name, call.arguments) for call in calls]
    return Message(
        role="assistant", content="\n".join(filter(None, [text, *written])), tool_calls=calls
    )


def _call(call: _Call) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return ToolCall(
            id=call.id, name=call.function.name, arguments={}, error=f"invalid JSON: {error}"
        )
    if not isinstance(arguments, dict):
        return ToolCall(
            id=call.id, name=call.function.name, arguments={}, error="arguments is not an object"
        )
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


def _stop(finish_reason: str | None) -> Literal["end_of_turn", "length"]:
    return "length" if finish_reason == "length" else "end_of_turn"
