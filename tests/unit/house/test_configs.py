"""Configurations that ship, and the page that describes their keys."""

from importlib.resources import files

import pytest
from pydantic import BaseModel

from journeyman.config import RunConfig, load_config, shipped_configs


def test_there_are_configurations_for_the_commands_of_the_readme() -> None:
    assert {"quickstart", "learn"} <= set(shipped_configs())


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configuration_is_valid_and_carries_its_own_name(name: str) -> None:
    assert (files("journeyman") / "configs" / f"{name}.toml").is_file()
    assert load_config(name).name == name


def keys(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += keys(field.annotation, f"{prefix}{name}.")
        else:
            found.append((prefix + name, field.description))
    return found


def test_every_key_says_what_it_does() -> None:
    assert [key for key, description in keys(RunConfig) if not description] == []
