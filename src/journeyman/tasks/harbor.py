"""Task directories in Harbor's layout: reading them and writing them.

task.toml  instruction.md  environment/Dockerfile  tests/test.sh  [solution/solve.sh]
"""

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from journeyman.tasks.dockerfile import needs_network, parse
from journeyman.types import Budget, Provenance, Task, UserError

_DEFAULT_VERIFIER_S = 120.0


def load_tasks(directory: Path | str) -> list[Task]:
    """The tasks below `directory` (or the one that it is), sorted by id.

    Directories whose name begins with a dot are passed over. Raises UserError naming the first
    task that is broken or asks for more than the default template has.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UserError(f"there is no directory {root}", "Build a task set: journeyman tasks build")
    if (root / "task.toml").exists() or (root / "instruction.md").exists():
        return [load_task(root)]
    known: dict[tuple[int, ...], str] = {}
    tasks = [load_task(path, known) for path in _task_directories(root)]
    if not tasks:
        raise UserError(f"{root} holds no tasks", "Build a task set: journeyman tasks build")
    return tasks


def _task_directories(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            yield path


def load_task(directory: Path, known: dict[tuple[int, ...], str] | None = None) -> Task:
    """One task; everything a run would stumble over is checked here."""
    settings = read_settings(directory)
    metadata = settings.get("metadata", {})
    instruction = _require(directory, "instruction.md").read_text(encoding="utf-8").strip()
    if not instruction:
        raise UserError(f"{directory}/instruction.md is empty", "Say what is to be done.")
    test = _require(directory, "tests/test.sh")
    parse(directory / "environment" / "Dockerfile")
    if metadata.get("provenance") is None:
        word = needs_network(test.read_text(encoding="utf-8", errors="replace"))
        if word is not None:
            raise UserError(
                f"{test} uses {word!r}, which needs a network; sandboxes have none",
                "The task asks for more than the default template has; leave it out.",
            )
    try:
        return Task(
            id=directory.resolve().name,
            instruction=instruction,
            directory=str(directory.resolve()),
            split=metadata.get("split", "held_out"),
            digest=directory_digest(directory, {} if known is None else known),
            budget=Budget(**_budget(settings)),
            provenance=_provenance(metadata),
        )
    except (ValidationError, TypeError) as error:
        raise UserError(f"{directory}/task.toml is broken: {error}", "Correct it.") from None


def read_settings(directory: Path) -> dict[str, Any]:
    """`task.toml` as a mapping, its verifier's time-out checked."""
    path = _require(directory, "task.toml")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is broken: {error}", "Correct it.") from None
    for table in ("metadata", "verifier", "agent", "environment"):
        if not isinstance(settings.get(table, {}), dict):
            raise UserError(f"{path}: {table!r} is not a table", f"Write [{table}].")
    verifier_timeout_s(settings, path)
    return settings


def verifier_timeout_s(settings: dict[str, Any], path: Path) -> float:
    """Seconds that tests/test.sh may take."""
    value = settings.get("verifier", {}).get("timeout_sec", _DEFAULT_VERIFIER_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise UserError(f"{path}: verifier.timeout_sec is {value!r}", "Give seconds, up to 3600.")
    return float(value)


def _require(directory: Path, name: str) -> Path:
    path = directory / name
    if not path.is_file():
        raise UserError(
            f"{directory} is no task directory: it has no {name}",
            "A task has task.toml, instruction.md, environment/Dockerfile and tests/test.sh.",
        )
    return path


def _budget(settings: dict[str, Any]) -> dict[str, Any]:
    """Ours from [metadata.budget], else the agent's time-out as deadline."""
    budget = dict(settings.get("metadata", {}).get("budget", {}))
    timeout_s = settings.get("agent", {}).get("timeout_sec")
    if timeout_s is not None:
        budget.setdefault("deadline_s", timeout_s)
    return budget


def _provenance(metadata: dict[str, Any]) -> Provenance | None:
    found = metadata.get("provenance")
    return None if found is None else Provenance(**found)


def directory_digest(directory: Path, known: dict[tuple[int, ...], str]) -> str:
    """sha256 over names and contents of all files, in the order of their names.

    `known` holds content digests by identity of a file: tasks of a project share files by hard
    links, and each is read once.
    """
    digest = hashlib.sha256()
    for path in sorted(item for item in directory.rglob("*") if item.is_file()):
        name = path.relative_to(directory).as_posix()
        content = _content_digest(path, known)
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _content_digest(path: Path, known: dict[tuple[int, ...], str]) -> str:
    found = path.stat()
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if identity not in known:
        known[identity] = hashlib.sha256(path.read_bytes()).hexdigest()
    return known[identity]
