"""Reading a run's configuration: a TOML file, then `--set section.key=value` on top."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from journeyman.config.run import RunConfig
from journeyman.types import UserError


def shipped_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    folder = files("journeyman") / "configs"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def load_config(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a shipped configuration by name or a TOML file by path.

    `overrides` are `section.key=value` with a TOML value; a bare word is taken as a string.
    Raises UserError naming the file, the key and what is allowed.
    """
    values = _read(source)
    for override in overrides:
        _apply(values, override)
    return build_config(values, source)


def build_config(values: Mapping[str, Any], source: str) -> RunConfig:
    """Validate `values`. Raises UserError that lists every broken key, not only the first."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        lines = [_explain(dict(e)) for e in error.errors()]
        raise UserError(
            f"the configuration {source} is not valid:\n    " + "\n    ".join(lines),
            "every key is described in docs/reference/config.md",
        ) from None


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if source in shipped_configs():
        text = (files("journeyman") / "configs" / f"{source}.toml").read_text()
    elif path.is_file():
        text = path.read_text(errors="replace")
    else:
        raise UserError(
            f"there is no configuration {source!r}",
            f"give the path of a TOML file, or one of: {', '.join(shipped_configs())}",
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not TOML: {error}", "mend that line") from None


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, raw = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise UserError(f"--set {override!r} is not section.key=value", "e.g. --set seed=1")
    section = values
    for part in path[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise UserError(f"--set {override!r}: {part} is not a section", "check the key")
    section[path[-1]] = _value(raw.strip())


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _explain(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such key"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message} (got {error['input']!r})" if where and error["loc"] else message
