"""Engines on the real model."""

import pytest

from journeyman.chat import ChatFormat
from journeyman.inference import Engine


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def chat_format(model_dir):
    return ChatFormat.load(model_dir)


@pytest.fixture(scope="session")
def torch_engine(model_dir):
    with Engine(model_dir, backend="torch", kv_tokens=16384) as engine:
        yield engine
