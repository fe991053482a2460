"""A real sandbox service with the real engine, once for all these tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from journeyman.sandbox.client import Copy, RemoteSandbox, SandboxClient, TemplateSpec, Workdir
from journeyman.sandbox.service.launch import running_service
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
def service(run: Callable[..., Any]) -> Iterator[SandboxClient]:
    """A client of one shared gvisor service. Fails where `make setup` has not been run."""
    stack = AsyncExitStack()

    async def start() -> SandboxClient:
        url = await stack.enter_async_context(running_service(driver="gvisor"))
        return await stack.enter_async_context(SandboxClient(url))

    yield run(start())
    run(stack.aclose())


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
