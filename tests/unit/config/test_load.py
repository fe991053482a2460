"""Configuration: what is wrong is named, nothing is silently ignored."""

from pathlib import Path

import pytest

from journeyman.config import load_config, shipped_configs
from journeyman.types import UserError


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_configuration_parses(name: str) -> None:
    assert load_config(name).name == name


def test_overrides_take_toml_values_and_bare_words() -> None:
    config = load_config(
        "quickstart",
        ["seed=7", "reinforcement.learning_rate=3e-5", "sandbox.driver=gvisor", "name='x'"],
    )
    assert config.seed == 7
    assert config.reinforcement.learning_rate == 3e-5
    assert config.sandbox.driver == "gvisor"
    assert config.name == "x"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("reinforcement.stepz=3", "reinforcement.stepz: there is no such key"),
        ("reinforcement.steps=-1", "reinforcement.steps"),
        ("agent.tokens=abc", "agent.tokens"),
        ("controls.plateau_epochs=3", "plateau_epochs would have no effect"),
        ("evaluation.pass_at=9", "needs samples"),
        ("agent.reply_tokens=768", "leaves no room for a prompt"),
        ("reinforcement.warmup_steps=50", "never ends"),
        ("seed", "is not section.key=value"),
        ("seed.deep=1", "seed"),
        (".=1", "is not section.key=value"),
    ],
)
def test_a_broken_override_is_refused_by_name(override: str, named: str) -> None:
    with pytest.raises(UserError, match=named.replace(".", r"\.")):
        load_config("quickstart", [override])


def test_idle_keys_are_refused_across_sections(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[warm_start]\nepochs = 0\n[tasks]\nwarm = 10\n")
    with pytest.raises(UserError, match="warm would have no effect because warm_start.epochs = 0"):
        load_config(str(path))


def test_every_broken_key_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("nam = 'x'\nseed = -1\n")
    with pytest.raises(UserError) as caught:
        load_config(str(path))
    assert "nam: there is no such key" in caught.value.cause
    assert "seed" in caught.value.cause


def test_a_file_that_is_not_toml_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("seed = = 1")
    with pytest.raises(UserError, match=r"broken.toml is not TOML"):
        load_config(str(path))
    with pytest.raises(UserError, match="there is no configuration 'nowhere.toml'"):
        load_config("nowhere.toml")


def test_controls_without_what_they_control_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[reinforcement]\nsteps = 0\n[controls]\ncontinued = true\n")
    with pytest.raises(UserError, match="continued would have no effect"):
        load_config(str(path))
