"""The default root file system: a small Debian with Python, git, ripgrep and pytest.

Built once by mmdebstrap from the host's own package sources, below
`$JOURNEYMAN_HOME/rootfs/<digest of the recipe>`. It is read-only for sandboxes and never changes
once it has its name; only agents are added to it, each under the digest of its source.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node import apt_sources
from journeyman.types.failure import UserError

PACKAGES = ("ca-certificates", "git", "make", "patch", "procps", "python3", "ripgrep")
PYTHON_PACKAGES = (
    "attrs==26.1.0",
    "hypothesis==6.170.17",
    "iniconfig==2.3.1",
    "packaging==26.4",
    "pluggy==1.7.0",
    "pygments==2.21.0",
    "pytest==9.2.0",
    "sortedcontainers==2.4.0",
)
_REVISION = 1
"""Raise when the steps below change what they build from the same lists."""
_EXCLUDED = ("doc", "info", "locale", "man", "lintian", "linda", "bash-completion")
_PYTHON_DIRECTORY = "usr/local/lib/python3.11/dist-packages"
AGENT_DIRECTORY = ".journeyman"

Progress = Callable[[str], None]


def recipe_digest(codename: str) -> str:
    recipe = json.dumps([codename, PACKAGES, PYTHON_PACKAGES, _EXCLUDED, _REVISION])
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def rootfs_path() -> Path:
    """Where the default root file system is, built or not."""
    return home_dir() / "rootfs" / recipe_digest(apt_sources.codename())


def require_rootfs() -> Path:
    """The built root file system. Raises UserError when set-up has not run."""
    path = rootfs_path()
    if not path.is_dir():
        raise UserError(
            f"the sandboxes' root file system {path} is not built",
            "Run as root: make setup",
        )
    return path


def build_rootfs(progress: Progress) -> Path:
    """Build it unless it is there; about 40 s. A failure leaves nothing under the final name."""
    target = rootfs_path()
    if target.is_dir():
        return target
    if os.geteuid() != 0:
        raise UserError(
            "building the sandboxes' root file system needs root",
            f"Run once as root: make setup JOURNEYMAN_HOME={home_dir()} && "
            f"chown -R {os.getuid()} {home_dir()}",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix="building-"))
    try:
        progress(f"root file system: Debian with {', '.join(PACKAGES)}")
        root = building / "root"
        _bootstrap(root, building)
        progress(f"root file system: {', '.join(PYTHON_PACKAGES)}")
        _install_python_packages(root)
        _finish(root)
        os.rename(root, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _bootstrap(root: Path, work: Path) -> None:
    codename = apt_sources.codename()
    sources = apt_sources.debian_sources(codename, apt_sources.read_sources())
    listing = work / "sources.list"
    listing.write_text(
        "".join(f"{line}\n" for source in sources for line in source.lines()), encoding="utf-8"
    )
    _run(
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--format=directory",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED),
        f"--include={','.join(PACKAGES)}",
        codename,
        str(root),
        str(listing),
    )


def _install_python_packages(root: Path) -> None:
    """With the host's pip: the guest has neither pip nor a network."""
    target = root / _PYTHON_DIRECTORY
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
    only = ("--only-binary=:all:", "--python-version=3.11", "--implementation=cp")
    _run(*pip, *only, "--disable-pip-version-check", f"--target={target}", *PYTHON_PACKAGES)
    # Compiled once here rather than in every fork.
    library = f"/{_PYTHON_DIRECTORY}"
    _run("chroot", str(root), "python3", "-m", "compileall", "-q", "-j", "1", library)


def _finish(root: Path) -> None:
    commands = root / "usr" / "local" / "bin"
    (commands / "python").symlink_to("/usr/bin/python3")
    script = commands / "pytest"
    script.write_text('#!/bin/sh\nexec python3 -m pytest "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    for directory in (AGENT_DIRECTORY, "app", "logs"):
        (root / directory).mkdir()
    # The host's resolver and sources say nothing to a guest without a network.
    (root / "etc" / "resolv.conf").unlink(missing_ok=True)
    (root / "etc" / "apt" / "sources.list").unlink(missing_ok=True)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="utf-8")
    _run("chroot", str(root), "git", "config", "--system", "safe.directory", "*")
    _run("chroot", str(root), "git", "config", "--system", "init.defaultBranch", "main")


def install_agent(rootfs: Path, agent: Path) -> str:
    """Put an agent into a root file system; returns its guest path. Idempotent and atomic."""
    name = agent.name
    target = rootfs / AGENT_DIRECTORY / name
    if not target.exists():
        temporary = target.with_name(f".{name}.{os.getpid()}")
        shutil.copyfile(agent, temporary)
        temporary.chmod(0o555)
        os.rename(temporary, target)
    return f"/{AGENT_DIRECTORY}/{name}"


def _run(*argv: str) -> None:
    result = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if result.returncode:
        output = result.stdout.decode("utf-8", "replace").strip()[-3000:]
        raise UserError(
            f"building the sandboxes' root file system failed: '{argv[0]}' ended with "
            f"{result.returncode}:\n{output}",
            "Check the network and free disk space, then run the set-up again.",
        )
