"""Tests that take `isa` run on the best instruction set of this machine and on the portable code;
those that take `every_isa` on all that it has."""

import pytest
from kernel_cases import CONFIGS

from journeyman.model import ModelConfig
from journeyman.model.kernels.instructions import available


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture(params=sorted({available()[0].name, available()[-1].name}))
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[isa.name for isa in available()])
def every_isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
