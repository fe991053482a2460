"""The functions of a module: where they are and how large."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """An outermost function or method. Lines are 1-based and inclusive.

    `start` is the first decorator's line (where Python says its code begins), `body` the first
    line after the docstring, `definition` the line of `def`.
    """

    qualname: str
    start: int
    definition: int
    body: int
    end: int
    node: FunctionNode

    @property
    def code_lines(self) -> int:
        """Lines from `def` to the end without the docstring."""
        return self.end - self.definition + 1 - (self.body - self._first_statement)

    @property
    def _first_statement(self) -> int:
        first = self.node.body[0]
        return first.lineno if _is_docstring(first) else self.body


def functions(tree: ast.Module) -> Iterator[Function]:
    """Functions and methods in the order of the source; nested ones belong to the outer one."""
    yield from _walk(tree, "")


def _walk(scope: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Function]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _walk(node, f"{prefix}{node.name}.")
        elif isinstance(node, FunctionNode):
            yield _describe(node, prefix)


def _describe(node: FunctionNode, prefix: str) -> Function:
    end = node.end_lineno or node.lineno
    first = node.body[0]
    body = first.lineno
    if _is_docstring(first):
        body = min((first.end_lineno or first.lineno) + 1, end)
    start = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    return Function(f"{prefix}{node.name}", start, node.lineno, body, end, node)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
