"""Writing a generated task as a Harbor directory."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from journeyman.tasks.candidates import Candidate
from journeyman.tasks.gates import is_protected
from journeyman.tasks.grading import harness_source
from journeyman.tasks.oracle import SOLVE_SCRIPT, oracle_json
from journeyman.tasks.sdist import pack

VERIFIER_TIMEOUT_S = 60
VERIFIER_CPU_S = 6
TEST_SCRIPT = """\
#!/bin/bash
# Runs the tests that the fault breaks and their neighbours; the verdict goes to /logs/verifier.
here="$(dirname "$0")"
exec python3 -I -S "$here/harness.py" verify "$here"
"""
DOCKERFILE = """\
FROM journeyman/default
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
WORKDIR /app
ADD project.tar.gz /app/
COPY broken/ /app/
"""


class SharedFiles:
    """Files that all tasks of a project have in common: written once, then hard-linked."""

    def __init__(self, root: Path, project: str, files: Mapping[str, bytes]) -> None:
        self._directory = root / ".shared" / project
        self._directory.mkdir(parents=True, exist_ok=True)
        protected = {name: data for name, data in files.items() if is_protected(name)}
        self.digests = {
            name: hashlib.sha256(data).hexdigest() for name, data in sorted(protected.items())
        }
        self._write("project.tar.gz", pack(files))
        self._write("pristine.tar.gz", pack(protected))
        self._write("harness.py", harness_source().encode())
        self._write("test.sh", TEST_SCRIPT.encode(), 0o755)
        self._write("solve.sh", SOLVE_SCRIPT.encode(), 0o755)
        self._write("Dockerfile", DOCKERFILE.encode())

    def _write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        path = self._directory / name
        path.write_bytes(data)
        path.chmod(mode)

    def link(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(self._directory / name, target)


def write_task(
    directory: Path,
    candidate: Candidate,
    instruction: str,
    patched: tuple[str, ...],
    shared: SharedFiles,
) -> None:
    """Write the whole directory; it must not exist yet."""
    for name in ("environment/project.tar.gz", "environment/Dockerfile"):
        shared.link(Path(name).name, directory / name)
    for name in ("tests/test.sh", "tests/harness.py", "tests/pristine.tar.gz"):
        shared.link(Path(name).name, directory / name)
    shared.link("solve.sh", directory / "solution" / "solve.sh")
    broken = directory / "environment" / "broken" / candidate.path
    broken.parent.mkdir(parents=True)
    broken.write_bytes(candidate.mutation.source)
    expected = {
        "root": "/app",
        "tests": candidate.tests,
        "cpu_s": VERIFIER_CPU_S,
        "timeout_s": VERIFIER_TIMEOUT_S - 10,
        "patched": patched,
        "protected": shared.digests,
    }
    _write_text(directory / "tests" / "expected.json", json.dumps(expected, indent=1) + "\n")
    _write_text(directory / "solution" / "oracle.json", oracle_json(candidate.oracle))
    _write_text(directory / "instruction.md", instruction + "\n")
    _write_text(directory / "task.toml", task_toml(candidate))


def task_toml(candidate: Candidate) -> str:
    lines = [
        'version = "1.0"',
        "",
        "[metadata]",
        'category = "bug repair"',
        'tags = ["python", "single-line"]',
        f"split = {json.dumps(candidate.split)}",
        "",
        "[metadata.provenance]",
    ]
    provenance = candidate.provenance.model_dump()
    # JSON strings and integers are TOML strings and integers.
    lines += [f"{name} = {json.dumps(value)}" for name, value in provenance.items()]
    lines += [
        "",
        "[agent]",
        "timeout_sec = 120.0",
        "",
        "[verifier]",
        f"timeout_sec = {float(VERIFIER_TIMEOUT_S)}",
        "",
        "[environment]",
        "build_timeout_sec = 600.0",
        "cpus = 1",
        "memory_mb = 1024",
        "storage_mb = 1024",
        "allow_internet = false",
    ]
    return "\n".join(lines) + "\n"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
