"""What a template is made of. The same layers give the same template id."""

from typing import Annotated, Literal

from pydantic import Field

from journeyman.types.value import Value


class AddTar(Value):
    """Unpack a tar archive (plain or compressed) below `path`, inside the guest."""

    kind: Literal["add_tar"] = "add_tar"
    path: str
    data: bytes


class Copy(Value):
    """Write one file."""

    kind: Literal["copy"] = "copy"
    path: str
    data: bytes
    mode: int = 0o644


class Run(Value):
    """Run `command` with `sh -c` in the work directory so far; it must end with 0."""

    kind: Literal["run"] = "run"
    command: str
    timeout_s: float = Field(default=600.0, gt=0)


class SetEnv(Value):
    """A variable for every later layer and command."""

    kind: Literal["env"] = "env"
    name: str
    value: str


class Workdir(Value):
    """Create a directory and make it the work directory of later `run` layers."""

    kind: Literal["workdir"] = "workdir"
    path: str


Layer = Annotated[AddTar | Copy | Run | SetEnv | Workdir, Field(discriminator="kind")]


class TemplateSpec(Value):
    """A prepared, snapshotted sandbox to fork from.

    Example: `TemplateSpec(layers=(Workdir(path="/app"), AddTar(path="/app", data=tar)))`.
    """

    base: str = "default"
    """`default` (Debian with Python, git, ripgrep, pytest), the id of another template, or the
    id of an imported image."""
    layers: tuple[Layer, ...] = ()
    warm: tuple[str, ...] = ()
    """argv of a process started before the snapshot; it runs on in every fork."""
    warm_s: float = Field(default=1.0, ge=0)
    """How long the warm process gets to load before the snapshot is taken."""
    memory_bytes: int = Field(default=1 << 30, ge=64 << 20)
    """Most memory a sandbox of this template may use, its files included."""
