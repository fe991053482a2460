import ast
import difflib
import shlex
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.tasks.mutation import MAX_LINES, MIN_LINES, mutations

STANDARD = [Path(module.__file__).read_bytes() for module in (shlex, textwrap, difflib)]

EXPRESSIONS = st.sampled_from(
    [
        "a < b",
        "a == b and not c",
        "items[1:]",
        "items[-1]",
        "min(a, b)",
        "a is None",
        "a + 1",
        "a.strip().lower()",
        "f(a, b, key=c)",
        "[x for x in items if x]",
        "a if b else c",
        "'_'.join(items)",
        "f'{a}-{b!r}'",
        "(a,\n            b)",
        "'ü' + a",
    ]
)
STATEMENTS = st.builds(
    lambda kind, value, indent: kind.format(value).replace("\n", "\n" + indent),
    st.sampled_from(["c = {}", "c += {}", "if {}:\n    return b", "return {}", "yield {}"]),
    EXPRESSIONS,
    st.just(""),
)


@st.composite
def modules(draw: st.DrawFn) -> bytes:
    indent = draw(st.sampled_from(["    ", "\t", "  "]))
    body = "\n".join(draw(st.lists(STATEMENTS, min_size=4, max_size=7)))
    lines = [indent + line for line in body.splitlines()]
    docstring = draw(st.sampled_from(["", f'{indent}"""Does ``a < b``: 1 + 1."""\n']))
    head = draw(st.sampled_from(["", "# ä comment\n\n\n", "X = 1 < 2\n"]))
    tail = draw(st.sampled_from(["", "\n", "\n\n# end", "\n\n\nY = not X\n"]))
    return f"{head}def f(a, b=1, *, c=True):\n{docstring}{chr(10).join(lines)}{tail}".encode()


def check(source: bytes) -> int:
    count = 0
    before = source.split(b"\n")
    for mutation in mutations(source):
        count += 1
        after = mutation.source.split(b"\n")
        assert len(after) == len(before)
        changed = [
            i for i, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1
        ]
        assert changed == [mutation.line - 1]
        assert before[changed[0]].decode() == mutation.original
        assert after[changed[0]].decode() == mutation.mutated
        assert mutation.function.definition <= mutation.line <= mutation.function.end
        assert ast.dump(ast.parse(mutation.source)) != ast.dump(ast.parse(source))
    return count


@settings(max_examples=60, deadline=None)
@given(modules())
def test_one_line_changes_and_all_else_stays_byte_for_byte(source: bytes) -> None:
    check(source)


def test_the_same_on_a_module_of_the_standard_library() -> None:
    assert check(STANDARD[0]) > 50


@pytest.mark.parametrize("source", STANDARD)
def test_functions_have_four_to_eighteen_lines_of_code(source: bytes) -> None:
    functions = {mutation.function for mutation in mutations(source)}
    assert functions
    assert all(MIN_LINES <= function.code_lines <= MAX_LINES for function in functions)


def test_the_docstring_is_not_broken_and_not_counted() -> None:
    docstring = b'    """One\n\n    a < 1 and so on.\n    """\n'
    source = b"def f(a):\n" + docstring + b"    b = 1\n    c = 2\n    return a < b\n"
    found = list(mutations(source))
    assert {mutation.function.code_lines for mutation in found} == {4}
    assert all(mutation.line >= 6 for mutation in found)


SOURCE = """\
def f(items, low, high=3, strict=True):
    text = " ".join(items).strip()
    if low is None or not strict:
        return text[1:], items
    for item in items:
        if item == low and item.startswith("a"):
            break
    total = low + high * len(items)
    total -= 1
    return min(total, high), False
"""


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("none", "    if low is not None or not strict:"),
        ("and_or", "    if low is None and not strict:"),
        ("negation", "    if low is None or strict:"),
        ("slice", "        return text[2:], items"),
        ("slice", "        return text[:1], items"),
        ("return_value", "        return items, text[1:]"),
        ("compare", '        if item != low and item.startswith("a"):'),
        ("sibling_call", '        if item == low and item.endswith("a"):'),
        ("loop_control", "            continue"),
        ("arithmetic", "    total = low - high * len(items)"),
        ("augment", "    total = 1"),
        ("arithmetic", "    total += 1"),
        ("boundary", "    total -= 2"),
        ("sibling_call", "    return max(total, high), False"),
        ("swapped_arguments", "    return min(high, total), False"),
        ("boolean", "    return min(total, high), True"),
        ("boolean", "def f(items, low, high=3, strict=False):"),
        ("dropped_call", '    text = " ".join(items)'),
        ("string", '    text = "".join(items).strip()'),
        ("wrong_variable", "    total = low + low * len(items)"),
    ],
)
def test_kinds(kind: str, line: str) -> None:
    assert (kind, line) in {(m.kind, m.mutated) for m in mutations(SOURCE.encode())}


def test_source_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        list(mutations(b"def f(:\n"))
