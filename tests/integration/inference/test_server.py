"""The HTTP faces over a real engine and tokenizer, through the real ASGI application."""

import httpx
import pytest

from journeyman.inference import ChatService, ScriptedEngine
from journeyman.inference.client import HttpSampler
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


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 2}, "n: "),
        ({"stream": True}, "stream: "),
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
