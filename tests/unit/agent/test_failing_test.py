"""What a person's agent is told of a failing test, from real pytest output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.cli.failing_test import FailingTest, find_failing, passed, pytest_command
from journeyman.types import UserError

MODULE = '''\
class Shape:
    def area(self):
        return self.width * self.height


def outer(x):
    return inner(x)


def inner(x):
    return {}[x]


def double(x):
    """Twice x."""
    return x + 2


def half(x):
    return x / 2
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "mod.py").write_text(MODULE)
    return tmp_path


def failing(root: Path, body: str, target: str = "tests") -> FailingTest:
    return find_failing(said_by_pytest(root, body, target), root)


def told(root: Path, body: str) -> str:
    return failing(root, body).instruction()


def said_by_pytest(root: Path, body: str, target: str = "tests") -> str:
    text = f"from pkg.mod import *\n\n\ndef test_it():\n    {body}\n"
    (root / "tests" / "test_mod.py").write_text(text)
    command = pytest_command(target).replace("python3", sys.executable, 1)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=root, env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_a_wrong_value_is_traced_to_the_function_the_test_calls(root: Path) -> None:
    assert told(root, "assert double(3) == 6") == (
        "The test `tests/test_mod.py::test_it` fails:\n"
        "assert 5 == 6\n+  where 5 = double(3)\n"
        'The fault is in line 16 of "pkg/mod.py", in `double`. See lines 14-18 (5 lines).'
    )


def test_an_exception_is_traced_to_the_deepest_frame_outside_the_tests(root: Path) -> None:
    assert told(root, "outer('k')").endswith(
        "KeyError: 'k'\n"
        'The fault is in line 11 of "pkg/mod.py", in `inner`. See lines 9-13 (5 lines).'
    )
    assert 'in line 3 of "pkg/mod.py", in `Shape.area`. See lines 1-5 (5 lines).' in told(
        root, "Shape().area()"
    )


def test_without_one_likely_place_none_is_named(root: Path) -> None:
    assert told(root, "assert 1 == 2") == (
        "The test `tests/test_mod.py::test_it` fails:\nassert 1 == 2"
    )
    assert "The fault is in" not in told(root, "assert double(1) == half(1)")


def test_each_attempt_supposes_another_line_and_begins_with_the_one_that_raised(
    root: Path,
) -> None:
    lines = ["def steps(x):", '    """Doc."""', "    y = x + 1", "    if y:", "        y = 1 / x"]
    (root / "pkg" / "mod.py").write_text("\n".join([*lines, "    return y"]) + "\n")

    def supposed(body: str) -> list[int]:
        found = failing(root, body)
        texts = [found.instruction(attempt) for attempt in range(5)]
        return [int(text.split("in line ")[1].split()[0]) for text in texts]

    assert supposed("assert steps(1) == 3") == [6, 5, 4, 3, 6]
    assert supposed("steps(0)") == [5, 6, 4, 3, 5]


def test_only_tests_that_ran_and_passed_pass(root: Path) -> None:
    assert passed(said_by_pytest(root, "assert double(2) == 4"))
    assert not passed(said_by_pytest(root, "assert double(2) == 5"))
    assert not passed(said_by_pytest(root, "pass", "tests/none.py"))
    assert not passed("1 passed, 1 error in 0.1s")
    assert not passed("5 deselected in 0.1s")


def test_a_module_that_does_not_import_is_told_too(root: Path) -> None:
    (root / "pkg" / "mod.py").write_text("import nothing_of_that_name\n")
    said = told(root, "pass")
    assert said.startswith("The test `tests/test_mod.py` fails:\n")
    assert "No module named 'nothing_of_that_name'" in said


def test_no_failing_test_is_an_error_with_what_pytest_said(root: Path) -> None:
    with pytest.raises(UserError, match="1 passed"):
        failing(root, "assert double(2) == 4")
    with pytest.raises(UserError, match="no test fails there"):
        failing(root, "pass", "tests/none.py")


def test_a_target_is_one_argument() -> None:
    assert pytest_command("a; rm -rf /").endswith("'a; rm -rf /'")
