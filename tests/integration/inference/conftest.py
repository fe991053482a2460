"""Engines on the real model."""

import pytest

from journeyman.chat import ChatFormat
from journeyman.inference import Engine
from journeyman.model import ModelConfig
from journeyman.model.torch_backend import TorchBackend


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


class Exact(TorchBackend):
    """The torch backend in float32: rows of a step hardly depend on each other."""

    def load(self, state):
        super().load({name: tensor.float() for name, tensor in state.items()})


@pytest.fixture(scope="session")
def exact_engine(model_dir):
    backend = Exact(ModelConfig.load(model_dir))
    with Engine(model_dir, backend=backend, kv_tokens=8192) as engine:
        yield engine
