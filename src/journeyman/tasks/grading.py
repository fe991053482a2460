"""Judging what an agent left behind, in a fresh sandbox that the agent never touched."""

import hashlib
import json
import time
import weakref
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, cast

from journeyman.sandbox.client import (
    Copy,
    Layer,
    RemoteSandbox,
    Run,
    SandboxClient,
    TemplateSpec,
    Workdir,
)
from journeyman.sandbox.client.tree import FileDigest, tree_changes, tree_digests
from journeyman.tasks.environment import build_template, prepare
from journeyman.tasks.gates import code_flags, is_protected, is_residue, protected_flags
from journeyman.tasks.harbor import read_settings, verifier_timeout_s
from journeyman.tasks.verdict import VERDICT_DIRECTORY, NoVerdict, VerdictFiles, parse_reward
from journeyman.types import (
    Environment,
    Failure,
    FailureKind,
    InfraError,
    Sandbox,
    Task,
    Verdict,
    VerifierError,
)

HARNESS_PATH = "/opt/journeyman/harness.py"
_START_S = 10.0
"""Beside the verifier's own time-out: for its shell to start and the files to move."""
_DIGEST_CHARS = 32
PRISTINE = "pristine.tar.gz"

_keeps_processes: weakref.WeakKeyDictionary[SandboxClient, bool] = weakref.WeakKeyDictionary()
"""Whether a service's driver keeps running processes in its templates."""


class VerdictCache(Protocol):
    """Verdicts by task digest and final tree: equal trees of one task share one verdict.
    `journeyman.store.Store` is one that lasts."""

    def cached_verdict(self, task_digest: str, tree_digest: str) -> Verdict | None: ...

    def cache_verdict(self, task_digest: str, verdict: Verdict) -> None: ...


class MemoryCache:
    """Verdicts of this process."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, str], Verdict] = {}

    def cached_verdict(self, task_digest: str, tree_digest: str) -> Verdict | None:
        return self._verdicts.get((task_digest, tree_digest))

    def cache_verdict(self, task_digest: str, verdict: Verdict) -> None:
        self._verdicts[task_digest, verdict.tree] = verdict


class Judgement:
    """One run of tests/test.sh: a reward, or the reason why there is none."""

    def __init__(self, reward: float | None, problem: str, report: dict[str, Any]) -> None:
        self.reward = reward
        self.problem = problem
        self.report = report

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(str(flag) for flag in self.report.get("flags", ()))


def harness_source() -> str:
    """The program that runs tests inside the sandbox."""
    return resources.files("journeyman.tasks.guest").joinpath("harness.py").read_text("utf-8")


_COMPILE = """\
export PYTHONDONTWRITEBYTECODE=
python3 -m pytest -q --collect-only -p no:cacheprovider >/dev/null 2>&1
python3 -m compileall -q . >/dev/null 2>&1
exit 0
"""
"""Half of a short test run is compiling and rewriting tests. Python takes a cache only for a
source of the same time and size: files laid over the template have another time."""


async def verifier_template(
    environment: Environment, sandboxes: SandboxClient, *, compiled: bool
) -> str:
    """The environment's template with pytest already imported, where the driver can keep it.

    `compiled`: with caches of the whole project's code, for generated tasks. They would give the
    answer away, but no agent ever works in this template.
    """
    if sandboxes not in _keeps_processes:
        _keeps_processes[sandboxes] = (await sandboxes.health()).driver == "gvisor"
    warm = _keeps_processes[sandboxes]
    layers: list[Layer] = [Copy(path=HARNESS_PATH, data=harness_source().encode())]
    if compiled:
        layers += [Workdir(path=environment.workdir), Run(command=_COMPILE)]
    spec = TemplateSpec(
        base=environment.template,
        layers=tuple(layers),
        warm=("python3", "-I", HARNESS_PATH, "serve") if warm else (),
        warm_s=2.0,
    )
    return await build_template(spec, sandboxes)


class HarborVerifier:
    """Implements `journeyman.types.Verifier` for Harbor task directories."""

    def __init__(self, sandboxes: SandboxClient, cache: VerdictCache | None = None) -> None:
        self._sandboxes = sandboxes
        self._cache = cache if cache is not None else MemoryCache()
        self._baselines: dict[str, dict[str, FileDigest]] = {}
        self._controls: dict[str, bool] = {}

    async def grade(self, task: Task, workspace: Sandbox) -> Verdict:
        """Collect the agent's changes and judge them. Raises InfraError when a machine failed."""
        started = time.monotonic()
        environment = await prepare(task, self._sandboxes)
        baseline = await self.baseline(environment)
        changes = await tree_changes(cast(RemoteSandbox, workspace), environment.workdir, baseline)
        changes = {name: data for name, data in changes.items() if not is_residue(name)}
        return await self.grade_changes(task, environment, baseline, changes, started)

    async def baseline(self, environment: Environment) -> dict[str, FileDigest]:
        """The work directory as every episode finds it."""
        template, root = environment.template, environment.workdir
        if template not in self._baselines:
            bare = Environment(template=template, workdir=root)
            sandbox = await self._sandboxes.create(bare)
            try:
                self._baselines[template] = await tree_digests(sandbox, root)
            finally:
                await sandbox.close()
        tree = dict(self._baselines[template])
        for path, data in environment.files.items():
            if path.startswith(f"{root.rstrip('/')}/"):
                tree[path[len(root.rstrip("/")) + 1 :]] = FileDigest(
                    kind="f", mode=0o644, size=len(data), sha256=hashlib.sha256(data).hexdigest()
                )
        return tree

    async def grade_changes(
        self,
        task: Task,
        environment: Environment,
        baseline: Mapping[str, FileDigest],
        changes: Mapping[str, bytes | None],
        started: float,
    ) -> Verdict:
        """Judge `changes` (relative path → content, or None for removed) to the baseline."""
        tree = tree_digest(changes)
        cached = self._cache.cached_verdict(task.digest, tree)
        if cached is not None:
            return cached.model_copy(
                update={"cached": True, "duration_s": time.monotonic() - started}
            )
        flags = list(protected_flags(changes, baseline))
        kept = {name: data for name, data in changes.items() if not is_protected(name)}
        if task.provenance is not None:
            flags += await self._code_flags(environment, kept)
        if flags:
            verdict = Verdict(reward=0.0, tree=tree, flags=tuple(flags))
        elif task.provenance is not None and not kept:
            verdict = Verdict(reward=0.0, tree=tree)  # known to fail since it was built
        else:
            verdict = await self._judged(task, environment, kept, tree)
        verdict = verdict.model_copy(update={"duration_s": time.monotonic() - started})
        if verdict.reward is not None:
            self._cache.cache_verdict(task.digest, verdict)
        return verdict

    async def _code_flags(
        self, environment: Environment, changes: Mapping[str, bytes | None]
    ) -> list[str]:
        after = {name: data for name, data in changes.items() if data and name.endswith(".py")}
        if not after:
            return []
        before = {}
        prefix = environment.workdir.rstrip("/")
        for name in after:
            data = environment.files.get(f"{prefix}/{name}")
            if data is not None:
                before[name] = data
        missing = [name for name in after if name not in before]
        if missing:
            before |= await self._originals(environment, missing)
        return list(code_flags(before, after))

    async def _originals(self, environment: Environment, names: list[str]) -> dict[str, bytes]:
        """Files of the template, for those that the task itself did not break."""
        known = await self.baseline(environment)
        names = [name for name in names if name in known]
        if not names:
            return {}
        sandbox = await self._sandboxes.create(environment)
        try:
            prefix = environment.workdir.rstrip("/")
            return {name: await sandbox.read_file(f"{prefix}/{name}") for name in names}
        finally:
            await sandbox.close()

    async def _judged(
        self,
        task: Task,
        environment: Environment,
        changes: Mapping[str, bytes | None],
        tree: str,
    ) -> Verdict:
        try:
            judgement = await self.run_tests(task, environment, changes)
        except InfraError:
            # Did the machine fail, or did the patch bring it down? A second fresh one decides.
            try:
                judgement = await self.run_tests(task, environment, changes)
            except InfraError:
                if not await self.control_passes(task, environment):
                    raise
                judgement = Judgement(None, "ended the sandbox", {})
        if judgement.reward is not None:
            reward = 0.0 if judgement.flags else judgement.reward
            return Verdict(reward=reward, tree=tree, flags=judgement.flags)
        if await self.control_passes(task, environment):
            failure = Failure(kind=FailureKind.POLICY, cause=judgement.problem)
            return Verdict(reward=0.0, tree=tree, failure=failure)
        error = VerifierError(f"the verifier of {task.id} gave no verdict: {judgement.problem}")
        return Verdict(reward=None, tree=tree, failure=error.failure())

    async def control_passes(self, task: Task, environment: Environment) -> bool:
        """Whether the task's own solution gets reward 1. False where there is no solution."""
        if task.digest not in self._controls:
            solved = False
            if (Path(task.directory) / "solution" / "solve.sh").is_file():
                solved = (await self.run_tests(task, environment, {}, solve=True)).reward == 1.0
            self._controls[task.digest] = solved
        return self._controls[task.digest]

    async def run_tests(
        self,
        task: Task,
        environment: Environment,
        changes: Mapping[str, bytes | None],
        *,
        solve: bool = False,
    ) -> Judgement:
        """Run tests/test.sh once in a fresh sandbox that has `changes`, or the solution's."""
        directory = Path(task.directory)
        timeout_s = verifier_timeout_s(read_settings(directory), directory / "task.toml")
        prefix = environment.workdir.rstrip("/")
        files = dict(environment.files)
        removed: list[str] = []
        for name, data in changes.items():
            path = f"{prefix}/{name}"
            files.pop(path, None)
            if data is None:
                removed.append(path)
            else:
                files[path] = data
        files |= _files_below(directory / "tests", "/tests")
        if task.provenance is not None:
            # For runners that judge the agent's own container; a fresh sandbox has them.
            files.pop(f"/tests/{PRISTINE}", None)
        if solve:
            files |= _files_below(directory / "solution", "/solution")
        template = await verifier_template(
            environment, self._sandboxes, compiled=task.provenance is not None
        )
        sandbox = await self._sandboxes.create(
            Environment(template=template, files=files, workdir=environment.workdir)
        )
        try:
            return await _run(sandbox, environment.workdir, removed, solve, timeout_s)
        finally:
            await sandbox.close()


_SCRIPT = f"""\
rm -rf {VERDICT_DIRECTORY} && mkdir -p {VERDICT_DIRECTORY} || exit 97
solve=$1; shift
for file in "$@"; do rm -f -- "$file"; done
if [ "$solve" = solve ]; then bash /solution/solve.sh </dev/null || exit 98; fi
exec bash /tests/test.sh </dev/null
"""


async def _run(
    sandbox: RemoteSandbox, workdir: str, removed: list[str], solve: bool, timeout_s: float
) -> Judgement:
    argv = ["sh", "-c", _SCRIPT, "sh", "solve" if solve else "-", *removed]
    result = await sandbox.exec(argv, cwd=workdir, timeout_s=timeout_s + _START_S)
    if result.timed_out:
        return Judgement(None, "ran out of time", {})
    files = VerdictFiles(
        reward_txt=await _read(sandbox, "reward.txt"),
        reward_json=await _read(sandbox, "reward.json"),
    )
    report = _report(await _read(sandbox, "report.json"))
    try:
        return Judgement(parse_reward(files), "", report)
    except NoVerdict as reason:
        return Judgement(None, str(reason), {**report, "output": result.text[-2000:]})


async def _read(sandbox: RemoteSandbox, name: str) -> bytes | None:
    try:
        return await sandbox.read_file(f"{VERDICT_DIRECTORY}/{name}", max_bytes=8 << 20)
    except OSError:
        return None


def _report(data: bytes | None) -> dict[str, Any]:
    """Our own verifier's account; another verifier's is not taken for one."""
    if data is None:
        return {}
    try:
        report = json.loads(data)
    except ValueError:
        return {}
    return report if isinstance(report, dict) and isinstance(report.get("flags"), list) else {}


def _files_below(directory: Path, target: str) -> dict[str, bytes]:
    return {
        f"{target}/{path.relative_to(directory).as_posix()}": path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def tree_digest(changes: Mapping[str, bytes | None]) -> str:
    """sha256 over the changes to the baseline; the same for equal final trees."""
    digest = hashlib.sha256()
    for name in sorted(changes):
        data = changes[name]
        content = "removed" if data is None else hashlib.sha256(data).hexdigest()
        digest.update(f"{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:_DIGEST_CHARS]
