"""Which faults are worth trying in a project."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from journeyman.tasks.functions import Function
from journeyman.tasks.gates import is_protected
from journeyman.tasks.mutation import Mutation, mutations
from journeyman.tasks.oracle import Oracle, edit_strings
from journeyman.tasks.projects import Project
from journeyman.tasks.size import EpisodeSize
from journeyman.tasks.splitting import order_key, round_robin, split_of
from journeyman.tasks.survey import Survey, choose_tests
from journeyman.types import Provenance, Split

GRADED_TESTS = 8
GRADED_SECONDS = 0.5
MAX_SHOWN_LINES = 12
"""Of the function, as the agent reads it. A model of 135 million parameters seldom mends more."""


@dataclass(frozen=True)
class Candidate:
    """A fault, the tests that should notice it, and how it is mended."""

    project: Project
    path: str
    mutation: Mutation
    oracle: Oracle
    shown: str
    """The lines that the oracle reads."""
    tests: tuple[str, ...]
    split: Split
    seed: int

    @property
    def function(self) -> str:
        return f"{self.path}:{self.mutation.function.qualname}"

    @property
    def id(self) -> str:
        """Readable, and different for each fault."""
        digest = hashlib.sha256(self.mutation.source).hexdigest()[:8]
        stem = PurePosixPath(self.path).stem
        name = self.mutation.function.qualname.replace(".", "-").lower()
        return f"{self.project.name}-{stem}-{name}-{digest}".replace("_", "-").replace("--", "-")

    @property
    def provenance(self) -> Provenance:
        return Provenance(
            project=self.project.name,
            version=self.project.version,
            path=self.path,
            function=self.mutation.function.qualname,
            mutation=self.mutation.kind,
            seed=self.seed,
        )


def candidates(
    project: Project,
    files: Mapping[str, bytes],
    tests: Survey,
    *,
    size: EpisodeSize,
    seed: int,
    per_function: int,
) -> list[Candidate]:
    """Up to `per_function` faults of each covered function, different kinds first; the first
    fault of every function comes before the second of any. Long functions are left out."""
    found: list[list[Candidate]] = []
    for path in sorted(files):
        if not _is_code(path, project):
            continue
        by_function: dict[Function, list[Candidate]] = {}
        for mutation in mutations(files[path]):
            candidate = _candidate(project, path, mutation, tests=tests, size=size, seed=seed)
            if candidate is not None:
                by_function.setdefault(mutation.function, []).append(candidate)
        for items in by_function.values():
            found.append(_diverse(items, seed)[:per_function])
    found.sort(key=lambda items: order_key(seed, items[0].project.name, items[0].function))
    rounds = range(max(map(len, found), default=0))
    return [items[i] for i in rounds for items in found if i < len(items)]


def _diverse(items: list[Candidate], seed: int) -> list[Candidate]:
    return list(
        round_robin(
            items,
            key=lambda item: order_key(seed, item.function, item.mutation.kind).hex(),
            order=lambda item: order_key(seed, item.id),
        )
    )


def _is_code(path: str, project: Project) -> bool:
    return (
        path.endswith(".py")
        and not is_protected(path)
        and any(PurePosixPath(path).is_relative_to(package) for package in project.packages)
    )


def _candidate(
    project: Project,
    path: str,
    mutation: Mutation,
    *,
    tests: Survey,
    size: EpisodeSize,
    seed: int,
) -> Candidate | None:
    """None where no trusted test calls the function, or the episode would be too long."""
    function = mutation.function
    covering = tests.covering.get(f"{path}:{function.start}", ())
    if not covering or b"\r" in mutation.source:
        return None
    lines = mutation.source.decode("utf-8").split("\n")
    try:
        old, new = edit_strings(
            "\n".join(lines), mutation.line, mutation.original, mutation.mutated
        )
    except ValueError:
        return None
    for first in dict.fromkeys((function.definition, function.body)):
        # Without its docstring a function may fit where it does not with it.
        if mutation.line < first:
            continue
        shown = "\n".join(lines[first - 1 : function.end])
        limit = function.end - first + 1
        oracle = Oracle(path=path, offset=first, limit=limit, old_string=old, new_string=new)
        if limit <= MAX_SHOWN_LINES and size.leaves_room(oracle, shown):
            chosen = choose_tests(covering, tests.tests, GRADED_TESTS, GRADED_SECONDS)
            split = split_of(project.split, seed, project.name, path, function.qualname)
            return Candidate(project, path, mutation, oracle, shown, tuple(chosen), split, seed)
    return None
