"""From a task's Dockerfile to what a sandbox starts from.

Everything up to the last heavy instruction becomes a template, which all tasks of a project
share; trailing COPY instructions become files written after the fork.
"""

import bz2
import gzip
import hashlib
import lzma
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from journeyman.sandbox.client import (
    AddTar,
    Copy,
    Layer,
    Run,
    SandboxClient,
    SetEnv,
    TemplateSpec,
    Workdir,
)
from journeyman.tasks.dockerfile import Dockerfile, Instruction, parse, words
from journeyman.types import Environment, Task, UserError

ENVIRONMENT_VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
"""In every task: no caches of compiled code that could keep an answer, and repeatable runs."""
_COMPRESSIONS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
)
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_environments: weakref.WeakKeyDictionary[SandboxClient, dict[str, Environment]] = (
    weakref.WeakKeyDictionary()
)
"""Environments by task digest."""
_templates: weakref.WeakKeyDictionary[SandboxClient, dict[str, str]] = weakref.WeakKeyDictionary()
"""Template ids by digest of their layers: sending a project once per service is enough."""


async def prepare(task: Task, sandboxes: SandboxClient) -> Environment:
    """Build the task's template unless it is there.

    Raises UserError for a Dockerfile that asks for more than the default template has.
    """
    known = _environments.setdefault(sandboxes, {})
    if task.digest not in known:
        spec, files, workdir = plan(parse(Path(task.directory) / "environment" / "Dockerfile"))
        template = await build_template(spec, sandboxes)
        known[task.digest] = Environment(template=template, files=files, workdir=workdir)
    return known[task.digest]


async def build_template(spec: TemplateSpec, sandboxes: SandboxClient) -> str:
    """The template's id; the layers travel only the first time."""
    known = _templates.setdefault(sandboxes, {})
    digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
    if digest not in known:
        known[digest] = await sandboxes.build_template(spec)
    return known[digest]


def plan(dockerfile: Dockerfile) -> tuple[TemplateSpec, dict[str, bytes], str]:
    """(template, files laid over it, work directory)."""
    workdir = "/"
    layers: list[Layer] = [
        SetEnv(name=name, value=value) for name, value in ENVIRONMENT_VARIABLES.items()
    ]
    trailing: dict[str, bytes] = {}
    for instruction in dockerfile.instructions:
        if instruction.word == "WORKDIR":
            workdir = str(PurePosixPath(workdir, instruction.rest))
        made = list(_layers(instruction, dockerfile.path, workdir))
        copies = {layer.path: layer.data for layer in made if isinstance(layer, Copy)}
        if instruction.word == "COPY" and len(copies) == len(made):
            trailing.update(copies)
            continue
        # Something heavy follows the copies: they belong to the template after all.
        layers += [Copy(path=path, data=data) for path, data in trailing.items()]
        trailing.clear()
        layers += made
    return TemplateSpec(layers=tuple(layers)), trailing, workdir


def _layers(instruction: Instruction, dockerfile: Path, workdir: str) -> Iterator[Layer]:
    match instruction.word:
        case "WORKDIR":
            yield Workdir(path=workdir)
        case "RUN":
            yield Run(command=instruction.rest)
        case "ENV":
            yield from _variables(instruction)
        case "COPY" | "ADD":
            *sources, target = words(instruction)
            for source in sources:
                yield from _copy(instruction, dockerfile.parent, source, workdir, target)


def _variables(instruction: Instruction) -> Iterator[Layer]:
    items = words(instruction)
    if "=" not in items[0]:
        yield SetEnv(name=items[0], value=instruction.rest.partition(" ")[2].strip())
        return
    for item in items:
        name, _, value = item.partition("=")
        yield SetEnv(name=name, value=value)


def _copy(
    instruction: Instruction, context: Path, source: str, workdir: str, target: str
) -> Iterator[Layer]:
    origin = (context / source.lstrip("/")).resolve()
    if not origin.is_relative_to(context.resolve()) or not origin.exists():
        raise UserError(
            f"{context / 'Dockerfile'}, line {instruction.line}: there is no {source!r} in "
            f"{context}",
            "Files to copy lie beside the Dockerfile.",
        )
    place = PurePosixPath(workdir, target)
    if origin.is_dir():
        for path in sorted(origin.rglob("*")):
            if path.is_file():
                yield _file(path, place / path.relative_to(origin).as_posix())
    elif instruction.word == "ADD" and origin.name.endswith(_TAR_ENDINGS):
        yield AddTar(path=str(place), data=plain_tar(origin.read_bytes()))
    else:
        into = target.endswith("/") or target in (".", "..")
        yield _file(origin, place / origin.name if into else place)


def plain_tar(data: bytes) -> bytes:
    """Decompressed here: the guest's tar reads a pipe, where it cannot see what it gets."""
    for magic, decompress in _COMPRESSIONS:
        if data.startswith(magic):
            return decompress(data)
    return data


def _file(path: Path, place: PurePosixPath) -> Copy:
    mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return Copy(path=str(place), data=path.read_bytes(), mode=mode)
