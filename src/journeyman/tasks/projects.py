"""The list of projects that tasks are made of (`projects.toml`)."""

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from journeyman.types import UserError, Value


class Project(Value):
    """One pinned source distribution."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    split: Literal["train", "held_out"]
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    keep: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    build_isolation: bool = False

    @property
    def python_path(self) -> tuple[str, ...]:
        """Directories, relative to the project, that its packages are imported from."""
        parents = (Path(package).parent.as_posix() for package in self.packages)
        return tuple(dict.fromkeys(parents))

    @property
    def modules(self) -> tuple[str, ...]:
        """Top-level module names: they must not be importable from anywhere else."""
        return tuple(Path(package).stem for package in self.packages)


SMALL = ("funcy", "inflection")
"""Quick to fetch and to test, one of each split: the set of `--small`."""

_PROJECTS = TypeAdapter(tuple[Project, ...])


def load_projects(names: Sequence[str] = (), path: Path | None = None) -> tuple[Project, ...]:
    """All projects, or those named. Raises UserError for an unknown name or a broken file."""
    if path is None:
        text = resources.files("journeyman.tasks").joinpath("projects.toml").read_text("utf-8")
    else:
        text = path.read_text("utf-8")
    try:
        projects = _PROJECTS.validate_python(tomllib.loads(text).get("project", []))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError(
            f"the list of projects {path or 'projects.toml'} is broken: {error}", "Correct it."
        ) from None
    known = {project.name: project for project in projects}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            f"no project named {', '.join(unknown)}", f"Known projects: {', '.join(known)}."
        )
    return tuple(known[name] for name in names) if names else projects
