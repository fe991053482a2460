"""Single-line mutations of functions; everything outside the one line stays byte for byte."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from journeyman.tasks.functions import Function, functions
from journeyman.tasks.mutators import OPERATORS, Replacement, Scope

MIN_LINES, MAX_LINES = 4, 18


@dataclass(frozen=True)
class Mutation:
    """One fault. `line` is 1-based; `original` and `mutated` are that line without its end."""

    kind: str
    function: Function
    line: int
    original: str
    mutated: str
    source: bytes
    """The whole broken file."""


def mutations(source: bytes) -> Iterator[Mutation]:
    """Every mutation of the functions of `source` (UTF-8) that have 4 to 18 lines of code.

    Each differs from `source` in exactly one line, parses, and means something else to the
    parser. Raises SyntaxError if `source` does not parse.
    """
    starts = line_starts(source)
    for function in functions(ast.parse(source)):
        if MIN_LINES <= function.code_lines <= MAX_LINES:
            yield from _of_function(Scope(source, starts, _variables(function)), function)


def _of_function(scope: Scope, function: Function) -> Iterator[Mutation]:
    reference = _meaning(scope.source, scope, function)
    seen = {scope.source}
    for node in _nodes(function):
        for operator in OPERATORS:
            for replacement in operator(node, scope):
                mutation = _apply(scope, function, replacement)
                if mutation is None or mutation.source in seen:
                    continue
                seen.add(mutation.source)
                if _meaning(mutation.source, scope, function) not in (None, reference):
                    yield mutation


def _apply(scope: Scope, function: Function, edit: Replacement) -> Mutation | None:
    """None where the edit would touch more than one line, or a line outside the function."""
    source = scope.source
    if b"\n" in source[edit.start : edit.end] or "\n" in edit.text:
        return None
    line = source.count(b"\n", 0, edit.start) + 1
    if not function.definition <= line <= function.end:
        return None
    start = scope.line_starts[line - 1]
    broken = source[: edit.start] + edit.text.encode("utf-8") + source[edit.end :]
    original = _line_at(source, start)
    mutated = _line_at(broken, start)
    if original == mutated:
        return None
    return Mutation(edit.kind, function, line, original, mutated, broken)


def _line_at(source: bytes, start: int) -> str:
    end = source.find(b"\n", start)
    line = source[start:] if end < 0 else source[start:end]
    return line.decode("utf-8").removesuffix("\r")


def _meaning(source: bytes, scope: Scope, function: Function) -> str | None:
    """The function's syntax tree as text (the rest of a large file need not be parsed again)."""
    after = len(source) - len(scope.source)
    end = scope.line_starts[function.end] if function.end < len(scope.line_starts) else None
    text = source[scope.line_starts[function.start - 1] : None if end is None else end + after]
    indented = text[:1] in (b" ", b"\t")
    try:
        return ast.dump(ast.parse(b"if 1:\n" + text if indented else text))
    except (SyntaxError, ValueError):
        return None


def line_starts(source: bytes) -> tuple[int, ...]:
    """Byte offset of each line's first byte."""
    starts = [0]
    while (newline := source.find(b"\n", starts[-1])) >= 0:
        starts.append(newline + 1)
    return tuple(starts)


def _nodes(function: Function) -> Iterator[ast.AST]:
    """The function's nodes, without docstring, decorators and annotations."""
    arguments = function.node.args
    roots: list[ast.AST] = [
        *arguments.defaults,
        *(default for default in arguments.kw_defaults if default is not None),
        *(item for item in function.node.body if item.lineno >= function.body),
    ]
    for root in roots:
        yield from _without_annotations(root)


def _without_annotations(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr):
                continue  # positions inside f-strings are not reliable before Python 3.12
            if isinstance(child, ast.AST):
                yield from _without_annotations(child)


def _variables(function: Function) -> tuple[str, ...]:
    """Parameters and names assigned in the function itself, in order of appearance."""
    arguments = function.node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = [item.arg for item in named]
    stored = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    stored.sort(key=lambda node: (node.lineno, node.col_offset))
    names += [node.id for node in stored if node.id != "_"]
    return tuple(dict.fromkeys(names))
