"""Tool calls in sampled text: read, repaired where there is one meaning, refused otherwise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.chat import format_call, parse_reply


def only_call(text: str):
    (call,) = parse_reply(text).tool_calls
    return call


def test_a_clean_call_needs_no_repair() -> None:
    text = format_call("edit", {"file_path": "a.py", "old_string": 'x = "é"\n', "new_string": ""})
    call = only_call(text)
    assert (call.name, call.repairs, call.error) == ("edit", (), None)
    assert call.arguments == {"file_path": "a.py", "old_string": 'x = "é"\n', "new_string": ""}


def test_calls_keep_their_order_and_the_text_is_kept_byte_for_byte() -> None:
    text = (
        "First.\n" + format_call("read", {"file_path": "a"}) + " then " + format_call("submit", {})
    )
    message = parse_reply(text)
    assert [(c.id, c.name) for c in message.tool_calls] == [
        ("call_1", "read"),
        ("call_2", "submit"),
    ]
    assert message.content == text


def test_a_reply_without_a_call_has_none() -> None:
    assert parse_reply("The fault is in {name: x}.").tool_calls == ()


@pytest.mark.parametrize(
    ("body", "arguments", "repair"),
    [
        ('{"name": "bash", "arguments": {"command": "ls",}}', {"command": "ls"}, "trailing comma"),
        ('{"name": "bash", "arguments": {"command": "ls"}', {"command": "ls"}, "closing brackets"),
        ('{"name": "bash", "arguments": {"command": "ls"}}}', {"command": "ls"}, "extra brackets"),
        ('{"name": "bash", "arguments": {"command": "a\nb"}}', {"command": "a\nb"}, "line breaks"),
        (r'{"name": "bash", "arguments": {"command": "\d"}}', {"command": r"\d"}, "escapes"),
        (
            r"""{"name": "bash", "arguments": {"command": "it\'s"}}""",
            {"command": "it's"},
            "escapes",
        ),
        ("{'name': 'bash', 'arguments': {'command': True}}", {"command": True}, "python literal"),
        (
            '{"name": "bash", "parameters": {"command": "ls"}}',
            {"command": "ls"},
            "parameters renamed",
        ),
        ('{"name": "bash", "command": "ls"}', {"command": "ls"}, "arguments wrapped"),
        ('{"name": "bash", "arguments": "{\\"command\\": 1}"}', {"command": 1}, "unquoted"),
        ('{"function": {"name": "bash", "arguments": {}}}', {}, "function unwrapped"),
    ],
)
def test_one_meaning_is_repaired_and_recorded(body: str, arguments: dict, repair: str) -> None:
    call = only_call(f"<tool_call>{body}</tool_call>")
    assert (call.name, call.arguments, call.error) == ("bash", arguments, None)
    assert any(repair in done for done in call.repairs), call.repairs


def test_a_comma_inside_a_string_is_not_a_trailing_comma() -> None:
    call = only_call(
        '<tool_call>{"name": "bash", "arguments": {"command": "f(a, ]", }}</tool_call>'
    )
    assert call.arguments == {"command": "f(a, ]"}


def test_a_missing_closing_tag_and_missing_tags_are_repaired() -> None:
    assert only_call('<tool_call>{"name": "submit", "arguments": {}}').repairs == (
        "closing tag added",
    )
    assert only_call('{"name": "submit", "arguments": {}}').repairs == ("tags added",)
    assert only_call('```json\n{"name": "submit", "arguments": {}}\n```').name == "submit"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "edit", "arguments": {"old_string": "retu',  # cut in a string
        '<tool_call>{"name": "read", "arguments": {"limit": 2',  # could have been 20
        '<tool_call>{"name": "read", "arguments": {',
        "<tool_call>",
        "<tool_call>submit</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {}, "why": "x"}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"timeout": 1e999}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {"a": ' + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_has_no_single_meaning_is_refused_with_a_reason(text: str) -> None:
    call = only_call(text)
    assert call.error
    assert call.arguments == {}


JSON_LIKE = st.text(alphabet='{}[]",:\\ntrue0 1.eE-\'<tool_call>/name"arguments\n', max_size=200)


@given(st.one_of(st.text(), JSON_LIKE, JSON_LIKE.map(lambda s: f"<tool_call>{s}</tool_call>")))
def test_parsing_is_total_and_its_result_can_be_stored(text: str) -> None:
    message = parse_reply(text)
    assert message.content == text
    for call in message.tool_calls:
        json.dumps(call.arguments, allow_nan=False).encode()
        assert call.error or call.name


ARGUMENTS = st.dictionaries(
    st.text(min_size=1, alphabet=st.characters(codec="utf-8")),
    st.one_of(
        st.text(alphabet=st.characters(codec="utf-8")), st.integers(-9999, 9999), st.booleans()
    ),
)


@given(ARGUMENTS)
def test_what_is_formatted_is_read_back(arguments: dict) -> None:
    text = format_call("bash", arguments)
    if any("tool_call>" in str(part) for item in arguments.items() for part in item):
        return  # a call that quotes the tags themselves cannot be told apart
    assert only_call(text).arguments == arguments


@given(ARGUMENTS, st.integers(0, 80))
def test_a_call_cut_anywhere_is_complete_or_refused_or_loses_only_whole_arguments(
    arguments: dict, cut: int
) -> None:
    text = format_call("bash", arguments)
    shortened = text[: max(len(text) - cut, len("<tool_call>"))]
    call = only_call(shortened)
    for name, value in call.arguments.items():
        assert arguments[name] == value, "a cut value was passed on as if it were whole"
