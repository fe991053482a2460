"""A real sandbox service, a template with a small project, and the real tokenizer."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from journeyman.chat import ChatFormat
from journeyman.sandbox.client import Copy, SandboxClient, TemplateSpec, Workdir
from journeyman.types import Environment

PROJECT = {
    "pkg/__init__.py": b"",
    "pkg/mod.py": b"def double(x):\n    return x + 2\n\n\ndef half(x):\n    return x / 2\n",
    "tests/test_mod.py": (
        b"from pkg.mod import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
    ),
}
INSTRUCTION = (
    "The test `tests/test_mod.py::test_double` fails:\n"
    "assert 5 == 6\n+  where 5 = double(3)\n"
    'The fault is in line 2 of "pkg/mod.py", in `double`. See lines 1-4 (4 lines).'
)


@pytest.fixture(scope="session")
def run() -> Iterator[Callable[..., Any]]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def service(run: Callable[..., Any], sandbox_service: str) -> Iterator[SandboxClient]:
    """A client of the shared gVisor service."""
    client = SandboxClient(sandbox_service)
    yield client
    run(client.aclose())


@pytest.fixture(scope="session")
def bare(service: SandboxClient, run: Callable[..., Any]) -> Environment:
    """The server's default environment: tools, and an empty working directory."""
    layers = (Workdir(path="/app"),)
    return Environment(template=run(service.build_template(TemplateSpec(layers=layers))))


@pytest.fixture(scope="session")
def environment(service: SandboxClient, run: Callable[..., Any]) -> Environment:
    """A task's environment: the project is part of the template."""
    files = [Copy(path=f"/app/{name}", data=data) for name, data in PROJECT.items()]
    spec = TemplateSpec(layers=(Workdir(path="/app"), *files))
    return Environment(template=run(service.build_template(spec)))


@pytest.fixture(scope="session")
def project() -> dict[str, bytes]:
    return PROJECT


@pytest.fixture(scope="session")
def instruction() -> str:
    return INSTRUCTION


@pytest.fixture(scope="session")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A person's directory with the same project."""
    root = tmp_path / "repository"
    for name, data in PROJECT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
