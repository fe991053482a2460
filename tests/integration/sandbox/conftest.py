"""A real sandbox service with the real engine, once for all these tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from journeyman.sandbox.client import Copy, RemoteSandbox, SandboxClient, TemplateSpec, Workdir
from journeyman.types import Environment

Result = TypeVar("Result")


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def run(loop: asyncio.Runner) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on the loop that the shared client lives on."""
    return loop.run


@pytest.fixture(scope="session")
def service(run: Callable[..., Any], sandbox_service: str) -> Iterator[SandboxClient]:
    """A client of the tests' gvisor service."""
    client = SandboxClient(sandbox_service)
    yield client
    run(client.aclose())


@pytest.fixture(scope="session")
def template(service: SandboxClient, run: Callable[..., Any]) -> str:
    layers = (Workdir(path="/app"), Copy(path="/app/hello.py", data=b"print('hello')\n"))
    return run(service.build_template(TemplateSpec(layers=layers)))


Fresh = Callable[[], Any]


@pytest.fixture
def fresh(service: SandboxClient, template: str) -> Fresh:
    """`async with fresh() as sandbox`: a new sandbox, closed at the end."""

    @asynccontextmanager
    async def make(**files: bytes) -> AsyncIterator[RemoteSandbox]:
        sandbox = await service.create(Environment(template=template, files=files), lease_s=120)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    return make


@pytest.fixture(scope="session")
def shared(run: Callable[..., Any], service: SandboxClient, template: str) -> RemoteSandbox:
    """One sandbox for tests that leave it as they found it."""
    return run(service.create(Environment(template=template), lease_s=3600))
