from pathlib import Path

import pytest

from journeyman.chat import ChatFormat


@pytest.fixture(scope="session")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)
