"""The real model. `make setup` fetches it; without it these tests fail, they do not skip."""

from pathlib import Path

import pytest

from journeyman.model.catalogue import model_dir


@pytest.fixture(scope="session")
def smollm2() -> Path:
    directory = model_dir("smollm2-135m")
    if not (directory / "model.safetensors").exists():
        pytest.fail(f"{directory} is missing: run `make setup`")
    return directory
