"""A real sandbox service, a template with a small project, and the real tokenizer."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from journeyman.chat import ChatFormat
from journeyman.config.home import home_dir
from journeyman.sandbox.client import Copy, SandboxClient, TemplateSpec, Workdir
from journeyman.sandbox.service.launch import running_service
from journeyman.types import Environment

PROJECT = {
    "pkg/__init__.py": b"",
    "pkg/mod.py": b"def double(x):\n    return x + 2\n\n\ndef half(x):\n    return x / 2\n",
    "tests/test_mod.py": (
        b"from pkg.mod import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
    ),
}
INSTRUCTION = (
    "The test `tests/test_mod.py::test_double` fails:\nassert 5 == 6\n"
    "The fault is in `double` in pkg/mod.py, lines 1-2."
)


@pytest.fixture(scope="session")
def run() -> Iterator[Callable[..., Any]]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def service(run: Callable[..., Any]) -> Iterator[SandboxClient]:
    """A client of one shared gVisor service. Fails where `make setup` has not been run."""
    stack = AsyncExitStack()

    async def start() -> SandboxClient:
        url = await stack.enter_async_context(running_service(driver="gvisor"))
        return await stack.enter_async_context(SandboxClient(url))

    yield run(start())
    run(stack.aclose())


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
def chat() -> ChatFormat:
    directory = home_dir() / "models" / "smollm2-135m"
    assert (directory / "tokenizer.json").is_file(), f"no model in {directory}: run `make setup`"
    return ChatFormat.load(directory)
