"""Fetching a project's source distribution and turning it into the tree that tasks start from."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from journeyman.tasks.projects import Project
from journeyman.types import UserError

_NEVER = (".git", "__pycache__", ".egg-info", ".orig", ".rej", ".pyc", ".pyo", ".so")
"""Parts of names that may hold the answer, or compiled code."""
_LICENCES = ("licen", "copying", "authors", "notice")
_FETCH_TIMEOUT_S = 300


def fetch(projects: Sequence[Project], directory: Path) -> dict[str, Path]:
    """Source distributions by project name, downloaded by pip where they are not there yet.

    pip checks the pinned digest before it runs anything of a distribution; it then asks the
    distribution's own build backend for metadata. Raises UserError naming what failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    found = _present(directory)
    for isolation in (False, True):
        missing = [
            project
            for project in projects
            if project.sha256 not in found and project.build_isolation == isolation
        ]
        if missing:
            _download(missing, directory, isolation)
    found = _present(directory)
    lost = [project.name for project in projects if project.sha256 not in found]
    if lost:
        raise UserError(
            f"pip downloaded other files than the pinned ones of: {', '.join(lost)}",
            f"Empty {directory} and try again.",
        )
    return {project.name: found[project.sha256] for project in projects}


def _present(directory: Path) -> dict[str, Path]:
    return {
        hashlib.sha256(path.read_bytes()).hexdigest(): path
        for path in sorted(directory.glob("*.tar.gz"))
    }


def _download(projects: Sequence[Project], directory: Path, isolation: bool) -> None:
    lines = "".join(
        f"{project.name}=={project.version} --hash=sha256:{project.sha256}\n"
        for project in projects
    )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(lines)
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary=:all:", "--require-hashes", f"--dest={directory}"]
        command += [] if isolation else ["--no-build-isolation"]
        command += ["--requirement", requirements.name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"pip did not fetch {_names(projects)} within {_FETCH_TIMEOUT_S} s",
                "See whether the package index can be reached.",
            ) from None
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise UserError(
            f"pip could not fetch the source distributions of {_names(projects)}:\n{tail}",
            "See whether the package index can be reached, then try again.",
        )


def _names(projects: Iterable[Project]) -> str:
    return ", ".join(f"{project.name} {project.version}" for project in projects)


def unpack(project: Project, archive: Path) -> dict[str, bytes]:
    """The files of the project that tasks need, by relative path, `pytest.ini` included.

    Packages, tests, licences and what `keep` names; nothing else of the distribution (no
    metadata, no caches, no compiled code).
    """
    wanted = (*project.packages, *project.tests, *project.keep)
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if not member.isfile() or not _is_wanted(path, wanted):
                continue
            data = tar.extractfile(member)
            if data is not None:
                files[path.as_posix()] = data.read()
    absent = [item for item in (*project.packages, *project.tests) if not _has(files, item)]
    if absent:
        raise UserError(
            f"{archive.name} has no {', '.join(absent)}",
            f"Correct the entry of {project.name} in projects.toml.",
        )
    files["pytest.ini"] = _pytest_ini(project).encode()
    return files


def _is_wanted(path: PurePosixPath, wanted: Sequence[str]) -> bool:
    if ".." in path.parts or any(part.endswith(_NEVER) for part in path.parts):
        return False
    if len(path.parts) == 1 and path.name.lower().startswith(_LICENCES):
        return True
    return any(path.is_relative_to(item) for item in wanted)


def _has(files: Mapping[str, bytes], item: str) -> bool:
    return any(PurePosixPath(name).is_relative_to(item) for name in files)


def _pytest_ini(project: Project) -> str:
    """One configuration of our own: projects' own ask for plugins that are not there."""
    paths = " ".join(dict.fromkeys((*project.python_path, ".")))
    tests = " ".join(project.tests)
    return (
        f"[pytest]\naddopts = -p no:cacheprovider\npythonpath = {paths}\ntestpaths = {tests}\n"
        "python_files = test_*.py *_test.py\n"
    )


def pack(files: Mapping[str, bytes]) -> bytes:
    """A gzipped tar of `files` that depends on nothing but their names and contents."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()
