"""Messages to ids: equal to the checkpoint's template, splice-safe, and closed to injection."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.chat import ChatFormat, format_call
from journeyman.types import Message, ToolSpec, UserError

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
SPECIALS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<file_sep>", "<|im_start|>system\n"]
HOSTILE = st.lists(st.one_of(TEXT, st.sampled_from(SPECIALS)), max_size=6).map("".join)
READ = ToolSpec(
    name="read",
    description="",
    parameters={"properties": {"file_path": {}, "limit": {}}, "required": ["file_path"]},
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


@pytest.mark.parametrize(
    "messages",
    [
        [user("Hello")],
        [user("\n\n  indented\n"), assistant("Sure: `x`"), user("and é 漢字 🙂?")],
        [
            Message(role="system", content="Be brief."),
            user("1 + 1?"),
            assistant("2"),
            user("sure?"),
        ],
    ],
)
def test_plain_conversations_equal_the_models_own_template(
    chat: ChatFormat, model_dir: Path, messages: list[Message]
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model_dir)
    plain = [{"role": m.role, "content": m.content} for m in messages]
    expected = theirs.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert chat.render(messages) == list(expected)


def test_tools_stand_in_the_system_message_as_signatures(chat: ChatFormat) -> None:
    text = chat.decode(chat.render([Message(role="system", content="Fix."), user("x")], [READ]))
    system = text.split("<|im_end|>")[0]
    assert system.endswith("</tool_call>\nread(file_path, limit?)")
    assert text.endswith("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")


@given(st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_splicing_equals_rendering_the_whole(
    chat: ChatFormat, rounds: list[tuple[str, str]]
) -> None:
    messages = [user("Fix it.")]
    stream = chat.render(messages, [READ])
    for reply, result in rounds:
        stream += [*chat.encode(reply), chat.end_of_turn, *chat.extend([tool(result)])]
        messages += [assistant(reply), tool(result)]
    assert stream == chat.render(messages, [READ])


def test_two_results_of_one_reply_are_spliced_as_they_are_rendered(chat: ChatFormat) -> None:
    before = [user("x")]
    after = [tool("one"), tool("two")]
    spliced = chat.render(before) + chat.encode("a") + chat.close_turn() + chat.extend(after)
    assert spliced == chat.render([*before, assistant("a"), *after])


@given(HOSTILE)
@settings(max_examples=100, deadline=None)
def test_no_text_of_user_or_tool_becomes_a_control_token(chat: ChatFormat, text: str) -> None:
    control = set(range(17))  # all added tokens of this vocabulary
    frame = [t for t in chat.render([user(""), assistant(""), tool("")]) if t in control]
    ids = chat.render([user(text), assistant(text), tool(text)])
    assert [t for t in ids if t in control] == frame


@given(HOSTILE)
@settings(max_examples=100, deadline=None)
def test_encoded_text_decodes_to_itself(chat: ChatFormat, text: str) -> None:
    lost = [c for c in text if c < " " and c not in "\t\n\r"]
    rare = [c for c in text if "\U00040000" <= c < "\U000c0000"]  # unassigned planes
    if not lost and not rare:
        assert chat.decode(chat.encode(text)) == text


def test_a_character_the_vocabulary_lacks_is_marked_not_dropped(chat: ChatFormat) -> None:
    assert chat.decode(chat.encode("a\x04b\ud800c")) in {"a\ufffdb?c", "a\ufffdb\ufffdc"}


def test_a_reply_is_decoded_without_its_end(chat: ChatFormat) -> None:
    ids = chat.encode("done")
    assert chat.decode_reply([*ids, chat.end_of_turn]) == "done"
    assert chat.decode_reply(ids) == "done"


def test_a_call_with_code_costs_few_tokens(chat: ChatFormat) -> None:
    call = format_call("read", {"file_path": "slugify/slugify.py", "offset": 31, "limit": 20})
    assert len(chat.encode(call)) <= 48


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json in"):
        ChatFormat.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="is broken"):
        ChatFormat.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    with pytest.raises(UserError, match="no chat template"):
        ChatFormat.load(tmp_path)


@pytest.mark.parametrize(
    ("template", "complaint"),
    [("{{ messages[0].content }}", "not ChatML"), ("{% if %}", "does not render")],
)
def test_a_template_of_another_family_is_refused(
    tmp_path: Path, model_dir: Path, template: str, complaint: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(UserError, match=complaint):
        ChatFormat.load(tmp_path)


def test_a_template_cannot_reach_python(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "chat_template.jinja").write_text(escape)
    with pytest.raises(UserError):
        ChatFormat.load(tmp_path)
