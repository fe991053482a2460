from pathlib import Path

import pytest

from journeyman.chat import ChatFormat
from journeyman.config.home import home_dir


@pytest.fixture(scope="session")
def model_dir() -> Path:
    directory = home_dir() / "models" / "smollm2-135m"
    assert (directory / "tokenizer.json").is_file(), f"no model in {directory}: run `make setup`"
    return directory


@pytest.fixture(scope="session")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)
