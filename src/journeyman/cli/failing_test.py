"""From a failing test to the words the agent was trained on: what fails, how, and where.

The test runs in the sandbox; only its output is read here, beside the person's own files.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from journeyman.tasks.functions import FunctionNode, functions
from journeyman.tasks.instruction import Place, instruction, lines_to_see, shorten
from journeyman.types import UserError

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_FRAME = re.compile(r"^(\S+\.py):(\d+): in .+$", re.MULTILINE)
_PASSED = re.compile(r"^\d+ passed\b(?!.*\b(?:failed|error))", re.MULTILINE)
_SAID = re.compile(r"^E\s+(.*)$", re.MULTILINE)
_SKIPPED = {".git", ".venv", "venv", "node_modules", "build", "dist", "__pycache__"}


def pytest_command(target: str) -> str:
    """Runs `target` (a file, a directory or a test's name) up to its first failure."""
    options = "-x -q --tb=short --no-header -p no:cacheprovider"
    return f"python3 -m pytest {options} {shlex.quote(target)}"


@dataclass(frozen=True)
class FailingTest:
    """What pytest said of the first test that failed, and where the fault may be."""

    name: str
    explanation: str
    suspects: tuple[Place, ...] = ()
    """The likeliest first. All are of one function, each names another line of it."""

    def instruction(self, attempt: int = 0) -> str:
        """What the agent is told: at its n-th attempt the fault is supposed in the n-th suspect."""
        if self.suspects:
            place = self.suspects[attempt % len(self.suspects)]
            return instruction(self.name, self.explanation, place)
        return f"The test `{self.name}` fails:\n{shorten(self.explanation)}"


def passed(output: str) -> bool:
    """Whether pytest ran tests and none failed."""
    return _PASSED.search(output) is not None


def find_failing(output: str, root: Path) -> FailingTest:
    """Read pytest's output. Raises UserError when it reports no failing test."""
    failed = _FAILED.search(output)
    if failed is None:
        last = output.strip().splitlines()[-1:] or ["nothing"]
        raise UserError(
            f"no test fails there: pytest said {last[0]!r}", "name a failing test with --test"
        )
    suspects = tuple(_suspects(output, root))
    return FailingTest(failed.group(1), "\n".join(_SAID.findall(output)), suspects)


def _suspects(output: str, root: Path) -> Iterator[Place]:
    """Lines of the function of the deepest frame that is no test's, beginning with the one that
    raised; else of the one function the failing line calls, from the last line up: there a wrong
    value leaves it."""
    frames = [(path, int(line)) for path, line in _FRAME.findall(output)]
    inside = [(path, line) for path, line in frames if _is_inside(root, path)]
    for path, line in reversed(inside):
        if not _is_test(path):
            yield from _suspects_at(root, path, line)
            return
    for path, line in reversed(inside):
        found = {found for name in _called(root / path, line) for found in _named(root, name)}
        if len(found) == 1:
            yield from _suspects_at(root, *found.pop())
            return


def _suspects_at(root: Path, path: str, line: int) -> Iterator[Place]:
    tree = _parse(root / path)
    for function in functions(tree) if tree else ():
        if function.start <= line <= function.end:
            suspected = _statements(function.node, function.body)
            suspected.sort(key=lambda found: (found != line, -found))
            num_lines = len((root / path).read_bytes().splitlines())
            for found in suspected:
                first, last = lines_to_see(found, num_lines)
                yield Place(path, function.qualname, first, last, found)
            return


def _statements(function: FunctionNode, body: int) -> list[int]:
    """The lines on which a function's statements begin, its docstring's aside."""
    found = {node.lineno for node in ast.walk(function) if isinstance(node, ast.stmt)}
    return [line for line in found - {function.lineno} if line >= body]


def _is_inside(root: Path, path: str) -> bool:
    file = (root / path).resolve()
    return file.is_relative_to(root.resolve()) and file.is_file()


def _is_test(path: str) -> bool:
    parts = Path(path).parts
    name = parts[-1]
    in_folder = any(part in ("test", "tests") for part in parts[:-1])
    return in_folder or name.startswith(("test_", "conftest")) or name.endswith("_test.py")


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _called(file: Path, line: int) -> set[str]:
    """Names that the statement at a line calls."""
    tree = _parse(file)
    names: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            if isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node.func, ast.Attribute):
                names.add(node.func.attr)
    return names


def _named(root: Path, name: str) -> Iterator[tuple[str, int]]:
    """Path and line of the functions of that name outside the tests."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if _is_test(str(path)) or _SKIPPED & set(path.parts):
            continue
        tree = _parse(file)
        for function in functions(tree) if tree else ():
            if function.qualname.rpartition(".")[2] == name:
                yield str(path), function.definition
