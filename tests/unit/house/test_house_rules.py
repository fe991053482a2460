"""The rules that scripts/check_house.py enforces: each refuses what it should."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_house", ROOT / "scripts/check_house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function_of(num_lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (num_lines - 1)


@pytest.mark.parametrize(("num_lines", "found"), [(80, 0), (81, 1)])
def test_functions_have_at_most_80_lines(house: ModuleType, num_lines: int, found: int) -> None:
    assert len(list(house.long_code(Path("a.py"), function_of(num_lines)))) == found


@pytest.mark.parametrize(("num_lines", "found"), [(500, 0), (501, 1)])
def test_files_have_at_most_500_lines(house: ModuleType, num_lines: int, found: int) -> None:
    assert len(list(house.long_code(Path("a.py"), "x = 1\n" * num_lines))) == found


@pytest.mark.parametrize(
    "line",
    [
        "index = https://py" + "pi.org/simple",
        "curl https://registry.npm" + "js.org/left-pad",
        "deb http://deb.deb" + "ian.org/debian bookworm main",
        "open('/wo" + "rk/main/x')",
        "/root/ve" + "nv/bin/python",
    ],
)
def test_hosts_and_machine_paths_are_found(house: ModuleType, line: str) -> None:
    assert len(list(house.forbidden_words(Path("a.md"), f"fine\n{line}\n"))) == 1


@pytest.mark.parametrize(
    "line", ["https://example.org/wo" + "rk/", "cd $HOME/wo" + "rk/x", "bookworm"]
)
def test_other_paths_are_left_alone(house: ModuleType, line: str) -> None:
    assert list(house.forbidden_words(Path("a.md"), line)) == []


def test_links_that_lead_nowhere_are_found(house: ModuleType) -> None:
    text = "[a](absent.md) [b](LICENSE#x) [c](https://example.org/x) [d](#here)"
    found = list(house.broken_links(Path("README.md"), text))
    assert found == ["README.md:1: link leads nowhere: absent.md"]
