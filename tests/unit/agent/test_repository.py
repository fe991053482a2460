"""What of a person's directory is sent to the sandbox."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from journeyman.agent.repository import pack
from journeyman.types import UserError


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("x = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret.env").write_text("KEY=1\n")
    (root / ".gitignore").write_text("*.env\n")
    (tmp_path / "outside").write_text("private\n")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "up").symlink_to("..")
    (root / "in").symlink_to("pkg/a.py")
    os.mkfifo(root / "fifo")
    return root


def test_what_git_ignores_and_what_leads_out_stays_here(repository: Path) -> None:
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run(["git", "add", "pkg"], cwd=repository, check=True)
    assert names(pack(repository)) == [".gitignore", "in", "pkg/a.py", "run.sh"]


def test_a_directory_inside_a_repository_is_packed_by_itself(repository: Path) -> None:
    subprocess.run(["git", "init", "-q", repository], check=True)
    assert names(pack(repository / "pkg")) == ["a.py"]


def test_without_git_everything_but_caches(repository: Path) -> None:
    (repository / "__pycache__").mkdir()
    (repository / "__pycache__" / "a.pyc").write_bytes(b"")
    found = names(pack(repository))
    assert found == [".gitignore", "in", "pkg/a.py", "run.sh", "secret.env"]


def test_modes_and_links_are_kept_and_owners_are_not(repository: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack(repository))) as tar:
        assert tar.getmember("run.sh").mode & 0o777 == 0o755
        assert tar.getmember("in").issym()
        assert {(m.uid, m.uname) for m in tar.getmembers()} == {(0, "")}


def test_a_deleted_tracked_file_is_left_out(repository: Path) -> None:
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run(["git", "add", "pkg"], cwd=repository, check=True)
    (repository / "pkg" / "a.py").unlink()
    assert "pkg/a.py" not in names(pack(repository))


def test_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no directory"):
        pack(tmp_path / "nowhere")
