"""`journeyman report` with what is missing."""

from pathlib import Path

import pytest

from journeyman.cli.main import main
from journeyman.store import Store


def run_main(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    return int(ended.value.code or 0)


def test_unknown_run(tmp_path: Path, capsys) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    assert run_main("report", tmp_path / "nothing", "--store", url) == 2
    assert "no run named 'nothing'" in capsys.readouterr().err


def test_no_tokenizer(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path))
    Store().create_run("demo", {"model": {"checkpoint": "unfetched"}})
    assert run_main("report", tmp_path / "runs" / "demo") == 2
    told = capsys.readouterr().err
    assert "none for its model 'unfetched'" in told
    assert "--checkpoint" in told
