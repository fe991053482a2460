"""Models behind an OpenAI-compatible endpoint: here our own, spoken to as a stranger would."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from journeyman.agent import prompt
from journeyman.agent.models import OpenAISampler
from journeyman.agent.tools import specs
from journeyman.chat import ChatFormat, format_call
from journeyman.inference import ChatService, ScriptedEngine
from journeyman.inference.server import app as model_app
from journeyman.types import (
    CompletionRequest,
    EngineError,
    Message,
    UserError,
)

READ = format_call("read", {"file_path": "a.py", "limit": 3})


def ask(transport: httpx.AsyncBaseTransport, *messages: Message, max_tokens: int = 200) -> Any:
    request = CompletionRequest(
        messages=(*prompt.opening("Fix it."), *messages),
        tools=specs(),
        conversation="c",
        max_tokens=max_tokens,
        seed=3,
    )

    async def body() -> Any:
        async with OpenAISampler("http://model/v1", "m", transport=transport) as sampler:
            return await sampler.complete(request)

    return asyncio.run(body())


@pytest.fixture
def endpoint(chat: ChatFormat) -> Any:
    def serve(texts: Sequence[str]) -> httpx.AsyncBaseTransport:
        service = ChatService(ScriptedEngine(chat, texts), chat)
        return httpx.ASGITransport(model_app(service))

    return serve


def test_tool_calls_come_as_our_own_model_would_have_written_them(endpoint: Any) -> None:
    completion = ask(endpoint(["I look.\n" + READ]))
    (call,) = completion.message.tool_calls
    assert (call.name, call.arguments) == ("read", {"file_path": "a.py", "limit": 3})
    assert completion.message.content == "I look.\n" + READ
    assert completion.stop == "end_of_turn"


def test_a_foreign_completion_has_no_tokens_and_says_so(endpoint: Any) -> None:
    completion = ask(endpoint(["Hello."]))
    assert completion.message.content == "Hello."
    assert completion.token_ids == completion.prompt_token_ids == completion.versions == ()


def test_results_are_sent_back_under_the_id_of_their_call(endpoint: Any, chat: ChatFormat) -> None:
    reply = ask(endpoint([READ])).message
    (call,) = reply.tool_calls
    result = Message(role="tool", content="1-1 of 1\nx", tool_call_id=call.id)
    assert ask(endpoint(["Done."]), reply, result).message.content == "Done."


def test_a_reply_that_was_cut_off_is_told(endpoint: Any) -> None:
    assert ask(endpoint(["word " * 50]), max_tokens=5).stop == "length"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, "no key", UserError),
        (404, "no such model", UserError),
        (429, "too many", EngineError),
        (500, "broken", EngineError),
        (200, "<html>", EngineError),
        (200, '{"choices": []}', EngineError),
    ],
)
def test_refusals_and_rubbish_are_told_apart(status: int, body: str, error: type) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    with pytest.raises(error, match=str(status)):
        ask(transport)


@pytest.mark.parametrize("arguments", ['{"file_path": "a', "[1]", ""])
def test_broken_arguments_are_the_models_doing(arguments: str) -> None:
    call = {"id": "x1", "function": {"name": "read", "arguments": arguments}}
    answer = {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=json.dumps(answer)))
    (parsed,) = ask(transport).message.tool_calls
    assert parsed.id == "x1"
    assert bool(parsed.error) == bool(arguments)
