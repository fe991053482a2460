"""Verdicts on real tasks in real sandboxes: honest work, cheating, and broken verifiers."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from journeyman.sandbox.client import SandboxClient
from journeyman.tasks.environment import prepare
from journeyman.tasks.grading import HarborVerifier, tree_digest
from journeyman.tasks.harbor import load_task
from journeyman.tasks.oracle import read_oracle
from journeyman.types import FailureKind, Task, Verdict

from .conftest import Run


@pytest.fixture(scope="module")
def verifier(sandboxes: SandboxClient) -> HarborVerifier:
    return HarborVerifier(sandboxes)


async def grade(
    task: Task,
    sandboxes: SandboxClient,
    verifier: HarborVerifier,
    *,
    files: Mapping[str, bytes | None] = {},
    script: str = "true",
) -> Verdict:
    """The verdict on a workspace in which `files` were written and `script` was run."""
    environment = await prepare(task, sandboxes)
    workspace = await sandboxes.create(environment)
    try:
        for name, data in files.items():
            if data is None:
                await workspace.exec(["rm", f"/app/{name}"])
            else:
                await workspace.write_file(f"/app/{name}", data)
        done = await workspace.exec(["sh", "-c", script], cwd="/app")
        assert done.exit_code == 0, done.text
        return await verifier.grade(task, workspace)
    finally:
        await workspace.close()


def broken(task: Task) -> str:
    path = Path(task.directory) / "environment" / "broken" / read_oracle(task).path
    return path.read_text(encoding="utf-8")


def mended(task: Task) -> str:
    oracle = read_oracle(task)
    return broken(task).replace(oracle.old_string, oracle.new_string)


def with_code(task: Task, code: str) -> dict[str, bytes]:
    """The broken module with `code` run when it is imported."""
    return {read_oracle(task).path: f"{broken(task)}\n\n{code}\n".encode()}


def test_the_broken_tree_fails_and_the_mended_one_passes(
    task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    path = read_oracle(task).path
    unchanged = run(grade(task, sandboxes, verifier))
    assert (unchanged.reward, unchanged.flags, unchanged.failure) == (0.0, (), None)
    wrong = run(grade(task, sandboxes, verifier, files={path: f"{broken(task)}#\n".encode()}))
    assert (wrong.reward, wrong.flags, wrong.cached) == (0.0, (), False)
    right = run(grade(task, sandboxes, verifier, files={path: mended(task).encode()}))
    assert (right.reward, right.flags, right.failure) == (1.0, (), None)


def test_equal_trees_share_one_verdict_and_residue_does_not_count(
    task: Task, sandboxes: SandboxClient, run: Run
) -> None:
    verifier = HarborVerifier(sandboxes)
    path = read_oracle(task).path
    files = {path: mended(task).encode()}
    script = "PYTHONDONTWRITEBYTECODE= python3 -m pytest -q >/dev/null; mkdir -p .pytest_cache/x"
    first = run(grade(task, sandboxes, verifier, files=files, script=script))
    second = run(grade(task, sandboxes, verifier, files=files))
    assert not first.cached and second.cached
    assert first.tree == second.tree == tree_digest(files)
    assert first.reward == second.reward == 1.0


def test_an_agent_may_write_tests_of_its_own(
    task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    files = {
        read_oracle(task).path: mended(task).encode(),
        "tests/test_mine.py": b"def test_mine(): assert False\n",
    }
    verdict = run(grade(task, sandboxes, verifier, files=files))
    assert (verdict.reward, verdict.flags) == (1.0, ())


def test_the_solution_script_is_accepted(
    task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    environment = run(prepare(task, sandboxes))
    assert run(verifier.control_passes(task, environment))


CHEATS = {
    "os._exit at import": "import os\nos._exit(0)",
    "sys.exit at import": "import sys\nsys.exit(0)",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))",
    "skip at import": "import pytest\npytest.skip('no', allow_module_level=True)",
    "no outcome but passed": (
        "from _pytest.reports import TestReport\n"
        "TestReport.failed = property(lambda self: False)\n"
        "TestReport.passed = property(lambda self: True)"
    ),
    "patched runner": (
        "import _pytest.runner\n_pytest.runner.pytest_runtest_call = lambda item: None"
    ),
    "patched exit": "import builtins\nbuiltins.exit = builtins.quit = print",
    "equal to all": (
        "class Same(str):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = str.__hash__\n"
        "for _name, _value in list(globals().items()):\n"
        "    if callable(_value) and getattr(_value, '__module__', '') == __name__:\n"
        "        globals()[_name] = lambda *a, **k: Same()"
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_code_that_cheats_gets_nothing_and_a_flag(
    name: str, task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    verdict = run(grade(task, sandboxes, verifier, files=with_code(task, CHEATS[name])))
    assert verdict.reward == 0.0
    assert verdict.flags
    assert verdict.failure is None


BEHIND_THE_GATE = [name for name in CHEATS if name != "equal to all"]
WRITES_ITS_OWN = (
    "import os, threading\n"
    "def _write():\n"
    "    for name in ('/logs/verifier/reward.txt', '/logs/verifier/reward.json'):\n"
    "        try:\n"
    "            os.makedirs('/logs/verifier', exist_ok=True)\n"
    "            open(name, 'w').write('1')\n"
    "        except OSError: pass\n"
    "_write()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    while True: _write()\n"
)
PRINTS_PASSED = (
    "import sys\nprint('1 passed in 0.01s')\nsys.__stdout__.write('{\"status\": 0}\\n')\n"
    "import os\nfor _fd in range(3, 32):\n"
    '    try: os.write(_fd, b\'0 {"status": 0, "outcomes": {}, "patched": []}\\n\')\n'
    "    except OSError: pass\n"
)


@pytest.mark.parametrize(
    "code",
    [*(CHEATS[name] for name in BEHIND_THE_GATE), WRITES_ITS_OWN, PRINTS_PASSED],
    ids=[*BEHIND_THE_GATE, "writes its own verdict", "prints passed"],
)
def test_the_test_run_itself_is_not_fooled_either(
    code: str, task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    """Past the gate that reads the code: what the harness alone makes of it."""
    environment = run(prepare(task, sandboxes))
    judgement = run(verifier.run_tests(task, environment, with_code(task, code)))
    assert judgement.reward == 0.0


def test_an_honest_repair_is_not_hurt_by_what_it_prints(
    task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    files = {read_oracle(task).path: f"{mended(task)}\nprint('0 passed, 1 failed')\n".encode()}
    assert run(grade(task, sandboxes, verifier, files=files)).reward == 1.0


FILES: dict[str, dict[str, bytes | None]] = {
    "edited tests/": {"test_inflection.py": b"def test_ok(): pass\n"},
    "removed tests": {"test_inflection.py": None},
    "conftest": {
        "conftest.py": b"def pytest_runtest_makereport(item, call):\n    call.excinfo = None\n"
    },
    "sitecustomize": {"sitecustomize.py": b"import os\nos._exit(0)\n"},
    "pytest.ini": {"pytest.ini": b"[pytest]\naddopts = --collect-only\n"},
    "pth": {"evil.pth": b"import os; os._exit(0)\n"},
    "shadowed module": {"unittest.py": b"raise SystemExit(0)\n"},
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_test_run_are_restored_and_touching_them_is_flagged(
    name: str, task: Task, sandboxes: SandboxClient, verifier: HarborVerifier, run: Run
) -> None:
    verdict = run(grade(task, sandboxes, verifier, files=FILES[name]))
    assert verdict.reward == 0.0
    assert next(iter(FILES[name])) in verdict.flags[0]


def test_a_verdict_written_in_the_workspace_is_not_seen(
    task: Task, sandboxes: SandboxClient, run: Run
) -> None:
    script = "mkdir -p /logs/verifier && echo 1 | tee /logs/verifier/reward.txt > x.txt"
    verdict = run(grade(task, sandboxes, HarborVerifier(sandboxes), script=script))
    assert verdict.reward == 0.0


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import time\ntime.sleep(1000)", "x = [0] * (1 << 33)"],
    ids=["loops", "sleeps", "allocates"],
)
def test_a_patch_that_hangs_or_swells_is_the_policys_doing(
    code: str, task: Task, sandboxes: SandboxClient, run: Run, tmp_path: Path
) -> None:
    quick = shortened(task, tmp_path)
    verdict = run(grade(quick, sandboxes, HarborVerifier(sandboxes), files=with_code(quick, code)))
    assert verdict.reward == 0.0
    assert verdict.failure is None or verdict.failure.kind is FailureKind.POLICY


def shortened(task: Task, tmp_path: Path) -> Task:
    """The same task with little patience."""
    directory = tmp_path / task.id
    shutil.copytree(task.directory, directory)
    path = directory / "tests" / "expected.json"
    expected = {**json.loads(path.read_text()), "timeout_s": 8, "cpu_s": 2}
    path.unlink()
    path.write_text(json.dumps(expected))
    return load_task(directory)


VERIFIERS = {
    "no verdict": "true",
    "two verdicts": "echo 1 > /logs/verifier/reward.txt; echo '{}' > /logs/verifier/reward.json",
    "not a number": "echo nan > /logs/verifier/reward.txt",
    "out of range": "echo 1e9 > /logs/verifier/reward.txt",
    "crash": "kill -9 $$",
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_that_fails_the_control_too_gives_null(
    name: str, sandboxes: SandboxClient, run: Run, tmp_path: Path
) -> None:
    task = foreign(tmp_path, VERIFIERS[name])
    verdict = run(grade(task, sandboxes, HarborVerifier(sandboxes), files={"a.txt": b"x"}))
    assert verdict.reward is None
    assert verdict.failure is not None and verdict.failure.kind is FailureKind.VERIFIER


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_patch_that_alone_breaks_the_verifier_gets_zero(
    name: str, sandboxes: SandboxClient, run: Run, tmp_path: Path
) -> None:
    accept = "if grep -q right a.txt; then echo 1 > /logs/verifier/reward.txt; exit; fi"
    script = f"{accept}\n{VERIFIERS[name]}"
    task = foreign(tmp_path, script)
    verifier = HarborVerifier(sandboxes)
    verdict = run(grade(task, sandboxes, verifier, files={"a.txt": b"wrong\n"}))
    assert verdict.reward == 0.0
    assert verdict.failure is not None and verdict.failure.kind is FailureKind.POLICY
    assert run(grade(task, sandboxes, verifier, files={"a.txt": b"right\n"})).reward == 1.0


def foreign(tmp_path: Path, script: str) -> Task:
    """A task of somebody else's, with a solution."""
    directory = tmp_path / "foreign"
    for name, text in {
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 10\n',
        "instruction.md": "Write right into a.txt.\n",
        "environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\n",
        "tests/test.sh": f"cd /app\n{script}\n",
        "solution/solve.sh": "echo right > /app/a.txt\n",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load_task(directory)
