"""A tiny random Llama on disk, and engines on it."""

import pytest
import torch
from transformers import LlamaConfig

from journeyman.inference import Engine
from journeyman.model import Llama, ModelConfig
from journeyman.model.checkpoint import load_state, save
from journeyman.model.torch_backend import TorchBackend
from journeyman.types import PolicyVersion


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    ).save_pretrained(directory)
    torch.manual_seed(11)
    model = Llama(ModelConfig.load(directory))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    save(model.to(torch.bfloat16), directory, tokenizer_from=directory)
    return directory


class Recorder(TorchBackend):
    """The torch backend in float32, where a step's rows hardly depend on each other, with a look
    at every step."""

    def __init__(self, directory):
        super().__init__(ModelConfig.load(directory))
        self.steps = []
        self.before_step = lambda batch: None

    def load(self, state):
        super().load({name: tensor.float() for name, tensor in state.items()})

    def step(self, batch):
        self.steps.append(batch)
        self.before_step(batch)
        return super().step(batch)


@pytest.fixture
def recorder(tiny):
    return Recorder(tiny)


@pytest.fixture
def make_engine(tiny):
    engines = []

    def make(**options):
        engines.append(Engine(tiny, **{"backend": Recorder(tiny), **options}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def other_weights(tiny):
    """Weights that say something else, and the version they are published as."""
    from journeyman.model.checkpoint import digest

    state = {name: tensor.clone() for name, tensor in load_state(tiny).items()}
    state["model.norm.weight"] = state["model.norm.weight"].flip(0)
    return state, PolicyVersion(number=7, digest=digest(state))
