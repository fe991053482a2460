"""Mutation operators: each turns one syntax node into a plausible slip of the hand.

An operator gets a node and the scope it stands in, and yields replacements of a part of the
source. It need not care whether the result parses: `mutation.mutations` checks that.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Replacement:
    """Put `text` in the place of source bytes [start, end)."""

    kind: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Scope:
    """What an operator may ask about the function around a node."""

    source: bytes
    line_starts: tuple[int, ...]
    variables: tuple[str, ...]
    """Parameters and assigned names, in the order of their first appearance."""

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Byte offsets of a node."""
        start = self.line_starts[node.lineno - 1] + node.col_offset
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None and end_column is not None
        return start, self.line_starts[end_line - 1] + end_column

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode("utf-8")

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int, str]:
        """The source between two neighbouring nodes: where it is, and what."""
        start, end = self.span(left)[1], self.span(right)[0]
        return start, end, self.source[start:end].decode("utf-8")


Operator = Callable[[ast.AST, Scope], Iterator[Replacement]]

COMPARISONS: Mapping[str, tuple[str, ...]] = {
    "<": ("<=", ">"),
    ">": (">=", "<"),
    "<=": ("<",),
    ">=": (">",),
    "==": ("!=",),
    "!=": ("==",),
    "in": ("not in",),
    "not in": ("in",),
    "is": ("is not",),
    "is not": ("is",),
}
ARITHMETIC: Mapping[str, str] = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "//",
    "//": "/",
    "%": "//",
    "**": "*",
    "|": "&",
    "&": "|",
    "<<": ">>",
    ">>": "<<",
}
NAME_SWAPS: Mapping[str, str] = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
}
METHOD_SWAPS: Mapping[str, str] = {
    "startswith": "endswith",
    "endswith": "startswith",
    "lower": "upper",
    "upper": "lower",
    "lstrip": "rstrip",
    "rstrip": "lstrip",
    "find": "rfind",
    "rfind": "find",
    "split": "rsplit",
    "rsplit": "split",
    "partition": "rpartition",
    "rpartition": "partition",
    "append": "extend",
    "extend": "append",
    "appendleft": "append",
    "popleft": "pop",
    "keys": "values",
    "values": "keys",
    "items": "keys",
    "group": "groups",
    "match": "search",
    "search": "match",
    "add": "discard",
    "start": "end",
    "end": "start",
}
DROPPABLE_METHODS = frozenset(
    ["lower", "upper", "strip", "lstrip", "rstrip", "copy", "title", "capitalize", "casefold"]
)
DROPPABLE_WRAPPERS = frozenset(
    ["list", "tuple", "set", "frozenset", "str", "int", "sorted", "reversed", "abs", "dict"]
)
SEPARATORS: Mapping[str, str] = {
    "": " ",
    " ": "",
    "_": "-",
    "-": "_",
    ",": ";",
    ".": ",",
    "/": "\\\\",
    ":": ";",
    "(": "[",
    ")": "]",
}


def compare(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`<` for `<=`, `==` for `!=`, `is None` for `is not None`…"""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, right in pairwise(operands):
        start, end, text = scope.between(left, right)
        symbol = " ".join(text.strip(" ()").split())
        none = isinstance(right, ast.Constant) and right.value is None
        for other in COMPARISONS.get(symbol, ()):
            kind = "none" if none else "compare"
            yield Replacement(kind, start, end, text.replace(text.strip(" ()"), other, 1))


def boundary(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """An integer one too large or one too small."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return
    text = scope.text(node)
    if text != str(node.value) or node.value > 10_000:
        return
    start, end = scope.span(node)
    kind = "slice" if scope.source[end : end + 1] in (b":", b"]") else "boundary"
    yield Replacement(kind, start, end, str(node.value + 1))
    if node.value > 1 or (node.value == 1 and scope.source[start - 1 : start] != b"-"):
        yield Replacement(kind, start, end, str(node.value - 1))


def boolean_operator(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`and` for `or`."""
    if not isinstance(node, ast.BoolOp):
        return
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in pairwise(node.values):
        start, end, text = scope.between(left, right)
        yield Replacement("and_or", start, end, text.replace(old, new, 1))


def negation(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """A `not` forgotten, or one too many in a condition."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start, end = scope.span(node)
        yield Replacement("negation", start, end, scope.text(node.operand))
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(
        node.test, ast.Name | ast.Call | ast.Attribute
    ):
        start, end = scope.span(node.test)
        yield Replacement("negation", start, end, f"not {scope.text(node.test)}")


def arithmetic(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`+` for `-`, `//` for `/`…"""
    if not isinstance(node, ast.BinOp):
        return
    start, end, text = scope.between(node.left, node.right)
    symbol = text.strip(" ()")
    if symbol in ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
        yield Replacement("arithmetic", start, end, text.replace(symbol, ARITHMETIC[symbol], 1))


def augmented(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`+=` for `-=`, or for `=`."""
    if not isinstance(node, ast.AugAssign):
        return
    start, end, text = scope.between(node.target, node.value)
    symbol = text.strip(" ()")
    yield Replacement("augment", start, end, text.replace(symbol, "=", 1))
    if symbol[:-1] in ARITHMETIC:
        other = f"{ARITHMETIC[symbol[:-1]]}="
        yield Replacement("arithmetic", start, end, text.replace(symbol, other, 1))


def boolean_constant(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """True for False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        start, end = scope.span(node)
        yield Replacement("boolean", start, end, str(not node.value))


def dropped_method(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`.lower()` or `.strip()` forgotten."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in DROPPABLE_METHODS
        and not node.args
    ):
        start, end = scope.span(node)
        yield Replacement("dropped_call", start, end, scope.text(node.func.value))


def dropped_wrapper(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`list(x)` where `x` was meant to be copied, `str(x)` where text was needed."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in DROPPABLE_WRAPPERS
        and len(node.args) == 1
        and not node.keywords
        and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp)
    ):
        start, end = scope.span(node)
        yield Replacement("dropped_call", start, end, scope.text(node.args[0]))


def swapped_arguments(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`f(b, a)` for `f(a, b)`."""
    if not isinstance(node, ast.Call) or len(node.args) != 2:
        return
    first, second = node.args
    if isinstance(first, ast.Starred | ast.Lambda) or isinstance(second, ast.Starred | ast.Lambda):
        return
    yield from _swap("swapped_arguments", first, second, scope)


def dropped_argument(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """The last argument forgotten."""
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) < 2:
        return
    nodes: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
    nodes.sort(key=scope.span)
    start, end = scope.span(nodes[-2])[1], scope.span(nodes[-1])[1]
    if b"(" not in scope.source[start : scope.span(nodes[-1])[0]]:
        yield Replacement("dropped_argument", start, end, "")


def swapped_values(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`return b, a` for `return a, b`; the two sides of a conditional expression."""
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        if len(node.value.elts) == 2:
            first, second = node.value.elts
            yield from _swap("return_value", first, second, scope)
    elif isinstance(node, ast.IfExp):
        yield from _swap("conditional", node.body, node.orelse, scope)


def swapped_operands(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`b - a` for `a - b` (only where the order matters)."""
    ordered = ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
    if isinstance(node, ast.BinOp) and isinstance(node.op, ordered):
        plain = ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript
        if isinstance(node.left, plain) and isinstance(node.right, plain):
            yield from _swap("operand_order", node.left, node.right, scope)


def slice_bound(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """A slice that starts where it should stop."""
    if not isinstance(node, ast.Slice) or node.step is not None:
        return
    start, end = scope.span(node)
    if node.lower is not None and node.upper is None:
        yield Replacement("slice", start, end, f":{scope.text(node.lower)}")
    elif node.upper is not None and node.lower is None:
        yield Replacement("slice", start, end, f"{scope.text(node.upper)}:")
    elif node.upper is not None and node.lower is not None:
        yield Replacement("slice", start, end, f"{scope.text(node.lower)}:")


def index_sign(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`x[0]` for `x[-1]` and back."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return
    other = {"0": "-1", "-1": "0"}.get(scope.text(node.slice))
    if other is not None:
        start, end = scope.span(node.slice)
        yield Replacement("index", start, end, other)


def loop_control(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`break` for `continue`."""
    if isinstance(node, ast.Break | ast.Continue):
        start, end = scope.span(node)
        word = "continue" if isinstance(node, ast.Break) else "break"
        yield Replacement("loop_control", start, end, word)


def sibling_function(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`min` for `max`, `.startswith` for `.endswith`…"""
    if not isinstance(node, ast.Call):
        return
    function = node.func
    if isinstance(function, ast.Name) and function.id in NAME_SWAPS:
        start, end = scope.span(function)
        yield Replacement("sibling_call", start, end, NAME_SWAPS[function.id])
    elif isinstance(function, ast.Attribute):
        other = NAME_SWAPS.get(function.attr) or METHOD_SWAPS.get(function.attr)
        if other is not None:
            end = scope.span(function)[1]
            yield Replacement("sibling_call", end - len(function.attr), end, other)


def separator(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """An empty string for a blank, a hyphen for an underscore…"""
    if not isinstance(node, ast.Constant) or node.value not in SEPARATORS:
        return
    if not isinstance(node.value, str):
        return
    start, end = scope.span(node)
    text = scope.text(node)
    quote = text[-1:]
    if text == f"{quote}{node.value}{quote}":
        yield Replacement("string", start, end, f"{quote}{SEPARATORS[node.value]}{quote}")


def wrong_variable(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """Another variable of the same function."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    if node.id not in scope.variables or len(scope.variables) < 2:
        return
    others = [name for name in scope.variables if name not in (node.id, "self", "cls")]
    if node.id in ("self", "cls") or not others:
        return
    start, end = scope.span(node)
    place = scope.variables.index(node.id)
    others.sort(key=lambda name: abs(scope.variables.index(name) - place))
    yield Replacement("wrong_variable", start, end, others[0])


def yielding(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`yield x` for `yield from x`."""
    if isinstance(node, ast.YieldFrom):
        start, end = scope.span(node)
        yield Replacement("yield", start, end, f"yield {scope.text(node.value)}")


def chained_branch(node: ast.AST, scope: Scope) -> Iterator[Replacement]:
    """`if` for `elif`."""
    if isinstance(node, ast.If):
        start, _ = scope.span(node)
        if scope.source[start : start + 4] == b"elif":
            yield Replacement("branch", start, start + 4, "if")


OPERATORS: tuple[Operator, ...] = (
    compare,
    boundary,
    boolean_operator,
    negation,
    arithmetic,
    augmented,
    boolean_constant,
    dropped_method,
    dropped_wrapper,
    swapped_arguments,
    dropped_argument,
    swapped_values,
    swapped_operands,
    slice_bound,
    index_sign,
    loop_control,
    sibling_function,
    separator,
    wrong_variable,
    yielding,
    chained_branch,
)


def _swap(kind: str, first: ast.expr, second: ast.expr, scope: Scope) -> Iterator[Replacement]:
    start, end = scope.span(first)[0], scope.span(second)[1]
    middle = scope.between(first, second)[2]
    if first.lineno == second.end_lineno:
        text = f"{scope.text(second)}{middle}{scope.text(first)}"
        yield Replacement(kind, start, end, text)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
