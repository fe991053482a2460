"""Which faults are worth trying in a project."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from journeyman.tasks.functions import Function
from journeyman.tasks.gates import is_protected
from journeyman.tasks.instruction import CONTEXT_LINES, lines_to_see
from journeyman.tasks.mutation import Mutation, mutations
from journeyman.tasks.oracle import Oracle, edit_strings
from journeyman.tasks.projects import Project
from journeyman.tasks.size import EpisodeSize
from journeyman.tasks.splitting import order_key, round_robin, split_of
from journeyman.tasks.survey import Survey, choose_tests
from journeyman.types import Provenance, Split

GRADED_TESTS = 8
GRADED_SECONDS = 0.5
KINDS = frozenset(
    {
        "and_or",
        "arithmetic",
        "augment",
        "boolean",
        "boundary",
        "branch",
        "compare",
        "conditional",
        "index",
        "loop_control",
        "negation",
        "none",
        "operand_order",
        "return_value",
        "swapped_arguments",
    }
)
"""Faults whose line still holds what its repair needs. What was dropped, or stood in another name's
place, a model of 135 million parameters seldom finds."""


@dataclass(frozen=True)
class Candidate:
    """A fault, the tests that should notice it, and how it is mended."""

    project: Project
    path: str
    mutation: Mutation
    oracle: Oracle
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
    fault of every function comes before the second of any."""
    found: list[list[Candidate]] = []
    for path in sorted(files):
        if not _is_code(path, project):
            continue
        by_function: dict[Function, list[Candidate]] = {}
        for mutation in mutations(files[path]):
            if mutation.kind not in KINDS:
                continue
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
    """None where no trusted test calls the function, the line cannot be told from others by the
    lines before it that are shown, or the episode would be too long."""
    function = mutation.function
    covering = tests.covering.get(f"{path}:{function.start}", ())
    if not covering or b"\r" in mutation.source:
        return None
    text = mutation.source.decode("utf-8")
    lines = text.removesuffix("\n").split("\n")
    try:
        old, new = edit_strings(text, mutation.line, mutation.original, mutation.mutated)
    except ValueError:
        return None
    if old.count("\n") > CONTEXT_LINES:
        return None
    first, last = lines_to_see(mutation.line, len(lines))
    shown = lines[first - 1 : last]
    oracle = Oracle(path=path, offset=first, limit=len(shown), old_string=old, new_string=new)
    if not size.leaves_room(oracle, "\n".join(shown)):
        return None
    chosen = choose_tests(covering, tests.tests, GRADED_TESTS, GRADED_SECONDS)
    split = split_of(project.split, seed, project.name, path, function.qualname)
    return Candidate(project, path, mutation, oracle, tuple(chosen), split, seed)
