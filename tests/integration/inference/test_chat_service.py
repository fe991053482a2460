"""Conversations on the real tokenizer: exact token streams through replies, edits and cuts."""

import asyncio

import pytest

from journeyman.inference import ChatService, ScriptedEngine, ScriptedSampler
from journeyman.types import CompletionRequest, EngineError, Message, ToolSpec, UserError

pytestmark = pytest.mark.anyio
TOOL = ToolSpec(name="bash", description="Run a command.", parameters={"type": "object"})
USER = Message(role="user", content="Mend the test.")
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
RESULT = Message(role="tool", content="a.py\nb.py", tool_call_id="1")


def ask(*messages, max_tokens=200, conversation="c", tools=(TOOL,), **options):
    return CompletionRequest(
        messages=messages,
        tools=tools,
        conversation=conversation,
        max_tokens=max_tokens,
        **options,
    )


@pytest.fixture
def scripted(chat_format):
    def make(*texts):
        return ChatService(ScriptedEngine(chat_format, texts), chat_format)

    return make


async def test_a_conversation_is_one_unbroken_stream(scripted, chat_format):
    service = scripted(CALL, "Done.")
    first = await service.complete(ask(USER))
    second = await service.complete(ask(USER, first.message, RESULT))
    assert first.message.tool_calls[0].arguments == {"command": "ls"}
    assert first.stop == second.stop == "end_of_turn"
    assert list(first.prompt_token_ids) == chat_format.render([USER], [TOOL])
    appended = chat_format.extend([RESULT])
    assert list(second.prompt_token_ids) == [
        *first.prompt_token_ids,
        *first.token_ids,
        *appended,
    ]
    (stream,) = service.release("c")
    assert stream.token_ids == second.prompt_token_ids + second.token_ids
    sampled = [t for t, on in zip(stream.token_ids, stream.loss_mask, strict=True) if on]
    assert tuple(sampled) == first.token_ids + second.token_ids
    assert [v for v in stream.versions if v >= 0] == [0] * len(sampled)
    assert service.num_edited == 0
    assert service.release("c") == ()


async def test_sampled_ids_are_spliced_even_where_text_would_tokenise_otherwise(chat_format):
    # "Hello" as five letters: no tokenizer would write it so.
    letters = [chat_format.encode(letter)[0] for letter in "Hello"]

    class Speller(ScriptedEngine):
        async def generate(self, prompt_ids, **options):
            said = await super().generate(prompt_ids, **options)
            ids = (*letters, chat_format.end_of_turn)
            return type(said)(ids, (-0.5,) * 6, (3,) * 6, "stop")

    service = ChatService(Speller(chat_format, ["", ""]), chat_format)
    first = await service.complete(ask(USER))
    assert first.message.content == "Hello"
    second = await service.complete(ask(USER, first.message, USER))
    start = len(first.prompt_token_ids)
    assert list(second.prompt_token_ids[start : start + 5]) == letters
    assert chat_format.encode("Hello") != letters


async def test_a_reply_that_was_cut_off_is_closed_before_the_next_message(scripted, chat_format):
    service = scripted("one two three four five", "ok")
    first = await service.complete(ask(USER, max_tokens=3))
    assert (first.stop, len(first.token_ids)) == ("length", 3)
    second = await service.complete(ask(USER, first.message, USER))
    tail = second.prompt_token_ids[len(first.prompt_token_ids) + 3 :]
    assert list(tail) == [chat_format.end_of_turn, *chat_format.extend([USER])]
    (stream,) = service.release("c")
    assert sum(stream.loss_mask) == 3 + len(second.token_ids)


@pytest.mark.parametrize("edit", ["user", "assistant", "tools", "shorter", "foreign reply"])
async def test_an_edited_history_starts_a_new_stream(scripted, chat_format, edit):
    service = scripted("Yes.", "No.")
    first = await service.complete(ask(USER))
    other = Message(role="user", content="Something else.")
    reply = Message(role="assistant", content="I never said this.")
    messages, tools = {
        "user": ((other, first.message, USER), (TOOL,)),
        "assistant": ((USER, reply, USER), (TOOL,)),
        "tools": ((USER, first.message, USER), ()),
        "shorter": ((USER,), (TOOL,)),
        "foreign reply": ((USER, first.message, USER, reply, USER), (TOOL,)),
    }[edit]
    second = await service.complete(ask(*messages, tools=tools))
    assert list(second.prompt_token_ids) == chat_format.render(messages, tools)
    assert service.num_edited == 1
    old, new = service.release("c")
    assert old.token_ids == first.prompt_token_ids + first.token_ids
    assert new.token_ids == second.prompt_token_ids + second.token_ids


async def test_a_failed_completion_leaves_no_trace(scripted):
    service = scripted("Yes.")
    first = await service.complete(ask(USER))
    with pytest.raises(EngineError, match="script of 1 replies is over"):
        await service.complete(ask(USER, first.message, USER))
    (stream,) = service.release("c")
    assert stream.token_ids == first.prompt_token_ids + first.token_ids


async def test_two_replies_at_once_to_one_conversation_are_refused(torch_engine, chat_format):
    service = ChatService(torch_engine, chat_format)
    running = asyncio.create_task(service.complete(ask(USER, max_tokens=30)))
    await asyncio.sleep(0)
    with pytest.raises(UserError, match="'c' is being completed already"):
        await service.complete(ask(USER))
    assert (await running).token_ids


async def test_forgotten_conversations_are_rendered_afresh(chat_format):
    engine = ScriptedEngine(chat_format, ["a", "b", "c"])
    service = ChatService(engine, chat_format, max_conversations=1)
    first = await service.complete(ask(USER))
    await service.complete(ask(USER, conversation="d"))
    again = await service.complete(ask(USER, first.message, USER))
    assert list(again.prompt_token_ids) == chat_format.render([USER, first.message, USER], [TOOL])


async def test_every_conversation_of_a_scripted_sampler_has_its_script(chat_format):
    sampler = ScriptedSampler(chat_format, lambda request: [request.conversation, "end"])
    one = await sampler.complete(ask(USER, conversation="one"))
    two = await sampler.complete(ask(USER, conversation="two"))
    assert (one.message.content, two.message.content) == ("one", "two")
    end = await sampler.complete(ask(USER, one.message, USER, conversation="one"))
    assert end.message.content == "end"
    assert sum(sampler.release("one")[0].loss_mask) == len(one.token_ids) + len(end.token_ids)


async def test_the_model_answers(torch_engine, chat_format):
    service = ChatService(torch_engine, chat_format)
    question = Message(role="user", content="What is the capital of France?")
    first = await service.complete(ask(question, tools=(), temperature=0, max_tokens=20))
    assert first.message.content == "The capital of France is Paris."
    follow = Message(role="user", content="And of Italy?")
    second = await service.complete(
        ask(question, first.message, follow, tools=(), temperature=0, max_tokens=20)
    )
    assert "Rome" in second.message.content
