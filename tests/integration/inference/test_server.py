"""The HTTP faces over a real engine and tokenizer, through the real ASGI application."""

import json

import httpx
import pytest

from journeyman.inference import ChatService, ScriptedEngine
from journeyman.inference.client import HttpSampler
from journeyman.inference.openai import ChatRequest
from journeyman.inference.openai_stream import stream
from journeyman.inference.server import app
from journeyman.types import CompletionRequest, EngineError, Message, PolicyVersion, UserError

pytestmark = pytest.mark.anyio
CALL = 'I look.\n<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def transport(service):
    return httpx.ASGITransport(app(service))


@pytest.fixture
async def open_client():
    clients = []

    def make(service):
        clients.append(httpx.AsyncClient(transport=transport(service), base_url="http://model"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


async def test_a_question_is_answered_with_exact_tokens(torch_engine, chat_format, open_client):
    client = open_client(ChatService(torch_engine, chat_format))
    body = {"messages": [QUESTION], "temperature": 0, "max_tokens": 20, "logprobs": True}
    answer = await client.post("/v1/chat/completions", json=body)
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"
    assert chat_format.decode_reply(choice["token_ids"]) == choice["message"]["content"]
    message = Message(role="user", content=QUESTION["content"])
    assert choice["prompt_token_ids"] == chat_format.render([message])
    assert [entry["token"] for entry in choice["logprobs"]["content"]][-1] == "<|im_end|>"
    assert all(entry["logprob"] <= 0 for entry in choice["logprobs"]["content"])
    assert choice["versions"] == [0] * len(choice["token_ids"])
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == len(choice["token_ids"])


async def test_tool_calls_come_back_and_the_stream_stays_one(chat_format, open_client):
    service = ChatService(ScriptedEngine(chat_format, [CALL, "Done."]), chat_format)
    client = open_client(service)
    body = {"messages": [QUESTION], "tools": TOOLS, "conversation": "c"}
    first = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["content"] == "I look."
    (call,) = first["message"]["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    result = {"role": "tool", "content": "a.py", "tool_call_id": call["id"]}
    body["messages"] = [QUESTION, first["message"], result]
    second = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    known = first["prompt_token_ids"] + first["token_ids"]
    assert second["prompt_token_ids"][: len(known)] == known
    assert service.num_edited == 0
    assert (await client.delete("/v1/conversations/c")).status_code == 204
    assert service.release("c") == ()


def read_events(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_stream_is_the_answer_in_pieces(torch_engine, chat_format, open_client):
    client = open_client(ChatService(torch_engine, chat_format))
    body = {"messages": [QUESTION], "temperature": 0, "max_tokens": 20}
    (whole,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = read_events(answer.text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["delta"]["content"] for c in choices) == whole["message"]["content"]
    assert len(choices) > 3
    assert choices[-1]["token_ids"] == whole["token_ids"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert usage["usage"]["completion_tokens"] == len(whole["token_ids"])


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        CALL.removeprefix("I look.\n"),
        '{"name": "bash", "arguments": {"command": "ls"}}',
        "a < b, <tool, é 日本 🦊 and\n\n  spaces  ",
        "<tool_call>not a call",
    ],
)
async def test_a_stream_shows_what_the_answer_in_one_piece_shows(chat_format, open_client, text):
    client = open_client(ChatService(ScriptedEngine(chat_format, [text] * 2), chat_format))
    body = {"messages": [QUESTION], "tools": TOOLS}
    answer = await client.post("/v1/chat/completions", json=body)
    whole = answer.json()["choices"][0]
    answer = await client.post("/v1/chat/completions", json={**body, "stream": True})
    choices = [chunk["choices"][0] for chunk in read_events(answer.text)]
    assert "".join(c["delta"]["content"] for c in choices) == (whole["message"]["content"] or "")
    calls = [{"index": n, **call} for n, call in enumerate(whole["message"].get("tool_calls", []))]
    assert choices[-1]["delta"].get("tool_calls", []) == calls
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


async def test_a_stream_that_cannot_begin_has_a_status(chat_format, open_client):
    client = open_client(ChatService(ScriptedEngine(chat_format, []), chat_format))
    body = {"messages": [QUESTION], "stream": True}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 503
    assert "script of 0 replies" in answer.json()["error"]["message"]


async def test_a_closed_stream_frees_the_engine(torch_engine, chat_format):
    service = ChatService(torch_engine, chat_format)
    asked = ChatRequest(messages=[QUESTION], stream=True, max_tokens=2000)
    events = stream(service, asked.as_request((), 0), asked)
    await anext(events)
    await events.aclose()
    # Commands are obeyed in order: after this one the cancellation has been.
    await torch_engine.generate([1], max_tokens=1)
    assert torch_engine.stats()["running"] == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 2}, "n: "),
        ({"stream_options": {"include_usage": True}}, "without stream"),
        ({"stop": ["x"]}, "stop: Extra inputs"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": []}, "messages: "),
    ],
)
async def test_what_would_be_ignored_is_refused(chat_format, open_client, change, named):
    client = open_client(ChatService(ScriptedEngine(chat_format, ["a"]), chat_format))
    answer = await client.post("/v1/chat/completions", json={"messages": [QUESTION], **change})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


async def test_the_own_contract_over_http_equals_the_service(torch_engine, chat_format):
    service = ChatService(torch_engine, chat_format)
    request = CompletionRequest(
        messages=(Message(role="user", content="Count."),),
        conversation="x",
        max_tokens=12,
        seed=5,
    )
    direct = await service.complete(request)
    service.release("x")
    async with HttpSampler("http://model", transport=transport(service)) as sampler:
        remote = await sampler.complete(request)
        assert remote == direct
        with pytest.raises(UserError, match="max_tokens"):
            await sampler.complete(request.model_copy(update={"max_tokens": 0}))
        await sampler.release("x")
    assert service.release("x") == ()


async def test_failures_keep_their_kind_over_http(chat_format):
    service = ChatService(ScriptedEngine(chat_format, []), chat_format)
    request = CompletionRequest(
        messages=(Message(role="user", content="Hi"),), conversation="x", max_tokens=5
    )
    async with HttpSampler("http://model", transport=transport(service)) as sampler:
        with pytest.raises(EngineError, match="answered 503.*script of 0 replies"):
            await sampler.complete(request)
    async with HttpSampler("http://127.0.0.1:1") as sampler:
        with pytest.raises(EngineError, match="cannot be reached"):
            await sampler.complete(request)


async def test_health_tells_why_an_engine_does_not_serve(model_dir, chat_format, open_client):
    from journeyman.inference import Engine

    with Engine(model_dir, backend="torch", kv_tokens=1024) as engine:
        client = open_client(ChatService(engine, chat_format))
        good = await client.get("/health")
        assert (good.status_code, good.json()["serving"]) == (200, True)
        assert good.json()["version"]["digest"] == engine.version.digest
        with pytest.raises(EngineError):
            await engine.load_weights({}, PolicyVersion(number=1, digest="0" * 64))
        bad = await client.get("/health")
        assert bad.status_code == 503
        assert "policy version 1" in bad.json()["problem"]
