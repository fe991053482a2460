"""A service with the E2B-compatible face, and the official SDK in two versions to call it."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from journeyman.config import home_dir
from journeyman.sandbox.service.tenants import TENANTS_FILE, Tenants

VERSIONS = ("2.45.1", "2.63.0")


@dataclass(frozen=True)
class Face:
    """Its address, and the keys of two tenants."""

    url: str
    key: str
    other_key: str

    def python(self, version: str, script: str) -> None:
        """Run a script that uses the unchanged SDK, pointed here by its own settings alone."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(sdk(version)),
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_API_KEY": self.key,
        }
        done = subprocess.run(
            (sys.executable, "-c", script),
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def sdk(version: str) -> Path:
    """The SDK below the home directory, fetched once by pip."""
    target = home_dir() / "e2b" / version
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as building:
            command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts")
            where = ("--disable-pip-version-check", "--target", f"{building}/sdk")
            subprocess.run((*command, *where, f"e2b=={version}"), check=True)
            shutil.move(f"{building}/sdk", target)
    return target


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def face(state: Path) -> Iterator[Face]:
    tenants = Tenants(state / TENANTS_FILE)
    port = _free_port()
    found = Face(f"http://127.0.0.1:{port}", tenants.add("one"), tenants.add("two"))
    arguments = ("--socket", str(state / "s"), "--state", str(state), "--driver", "gvisor")
    service = subprocess.Popen(
        (
            *(sys.executable, "-m", "journeyman.sandbox.service", *arguments),
            *("--listen", f"127.0.0.1:{port}", "--lifeline"),
        ),
        stdin=subprocess.PIPE,
    )
    try:
        for _ in range(600):
            try:
                httpx.get(f"{found.url}/sandboxes", trust_env=False)
                break
            except httpx.TransportError:
                assert service.poll() is None, "the service ended"
                time.sleep(0.1)
        yield found
    finally:
        service.stdin.close()  # type: ignore[union-attr]
        service.wait(30)
