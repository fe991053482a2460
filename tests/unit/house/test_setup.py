"""`make setup` runs what is needed, once, and says where it stopped."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts/setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "setup_script", module)  # dataclasses look it up there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.fixture
def step(setup: ModuleType, tmp_path: Path) -> Any:
    """Appends a line to `calls`; depends on `source`; makes `product`."""
    (tmp_path / "source").write_text("1")
    script = "echo ran >> calls; touch product"
    return setup.Step(
        "s",
        "A step",
        "1 s",
        (("bash", "-c", script),),
        inputs=("source",),
        products=(tmp_path / "product",),
        stamps=tmp_path / "stamps",
    )


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_second_run_does_nothing(setup: ModuleType, step: Any, tmp_path: Path) -> None:
    setup.run_steps([step])
    setup.run_steps([step])
    assert calls(tmp_path) == 1


@pytest.mark.parametrize("change", ["input", "product", "command"])
def test_what_changed_is_done_again(
    setup: ModuleType, step: Any, tmp_path: Path, change: str
) -> None:
    setup.run_steps([step])
    if change == "input":
        (tmp_path / "source").write_text("2")
    elif change == "product":
        (tmp_path / "product").unlink()
    else:
        step = replace(step, commands=(*step.commands, ("true",)))
    setup.run_steps([step])
    assert calls(tmp_path) == 2


def test_a_failed_step_stops_names_its_cure_and_is_tried_again(
    setup: ModuleType, step: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = replace(step, commands=(("bash", "-c", "exit 3"),), cure="apt-get install it")
    never = replace(step, name="later")
    with pytest.raises(SystemExit) as stopped:
        setup.run_steps([broken, never])
    assert stopped.value.code == 3
    assert "apt-get install it" in capfd.readouterr().err
    assert calls(tmp_path) == 0
    assert not broken.is_done()


def test_the_lock_pins_torch_at_the_version_the_project_asks_for(setup: ModuleType) -> None:
    setup.ROOT = ROOT
    assert setup._pinned("torch") in (ROOT / "pyproject.toml").read_text()
