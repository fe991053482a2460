"""The real model. `make setup` fetches it; without it these tests fail, they do not skip."""

from pathlib import Path

import pytest

from journeyman.chat import ChatFormat
from journeyman.inference import Engine
from journeyman.model.catalogue import model_dir


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    directory = model_dir("smollm2-135m")
    if not (directory / "model.safetensors").exists():
        pytest.fail(f"{directory} is missing: run `make setup`")
    return directory


@pytest.fixture(scope="session")
def chat_format(smollm2):
    return ChatFormat.load(smollm2)


@pytest.fixture(scope="session")
def torch_engine(smollm2):
    with Engine(smollm2, backend="torch", kv_tokens=16384) as engine:
        yield engine
