"""`journeyman eval` with the real model, engine, agent server, sandboxes and verifiers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from journeyman.cli.main import main
from journeyman.config import home_dir
from journeyman.evaluation import Evaluation
from journeyman.store import Store

MODEL = home_dir() / "models" / "smollm2-135m"
QUICK = ("--reply-tokens", "8", "--turns", "1", "--json")


def run_main(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    return int(ended.value.code or 0)


def test_solved_unsolved_and_unjudged_tasks(tmp_path: Path, write_task, capsys) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks, "always", "echo 1 > /logs/verifier/reward.txt")
    write_task(tasks, "never", "echo 0 > /logs/verifier/reward.txt")
    write_task(tasks, "rubbish", "echo 'all good, I think' > /logs/verifier/reward.txt")
    write_task(tasks, "some-more", "echo 1 > /logs/verifier/reward.txt")  # beyond the limit
    url = f"sqlite:///{tmp_path}/store.db"
    options = ("--samples", 2, "--limit", 3, "--store", url, *QUICK)
    status = run_main("eval", "--tasks", tasks, "--checkpoint", MODEL, *options)
    told = capsys.readouterr()
    assert status == 0, told.err
    answer = json.loads(told.out.splitlines()[-1])
    assert set(answer) == {"solved", "episodes", "low", "high", "failures"}
    assert answer["solved"] == pytest.approx(2 / 6)
    assert answer["episodes"] == 6
    assert answer["failures"]["verifier"] == 2
    assert answer["low"] <= answer["solved"] <= answer["high"]
    store = Store(url)
    (run,) = store.run_names()
    ((name, _, evaluation),) = store.evaluations(run, Evaluation)
    assert name == "eval"
    assert [row.task for row in evaluation.tasks] == ["always", "never", "rubbish"]
    episodes = list(store.episodes(run=run))
    assert len(episodes) == 6
    assert all(any(stream.loss_mask) for e in episodes for stream in e.streams)
    store.close()


def test_ctrl_c_cleans_up_and_is_130(tmp_path: Path, write_task) -> None:
    write_task(tmp_path / "tasks", "slow", "sleep 15; echo 1 > /logs/verifier/reward.txt")
    options = ("--samples", "1", "--store", f"sqlite:///{tmp_path}/store.db", *QUICK)
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # short: it will hold sockets
        arguments = ["--tasks", tmp_path / "tasks", "--checkpoint", MODEL, *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "journeyman.cli", "eval", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": ":".join(sys.path), "TMPDIR": temporary},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        shown = ""
        while "evaluate: 0/1" not in shown:
            line = process.stderr.readline()
            assert line, shown
            shown += line
        process.send_signal(signal.SIGINT)
        shown += process.stderr.read()
        assert process.wait(timeout=60) == 130, shown
        assert process.stdout.read() == ""
        assert "Traceback" not in shown
        assert list(Path(temporary).glob("journeyman-*")) == []
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda task: (task / "tests" / "test.sh").unlink(), "tests/test.sh"),
        (lambda task: (task / "task.toml").write_text("not toml ["), "task.toml is broken"),
        (
            lambda task: (task / "environment" / "Dockerfile").write_text("FROM rust:1.80\n"),
            "FROM rust:1.80",
        ),
    ],
)
def test_a_broken_task_is_refused_by_name(tmp_path, write_task, capsys, break_it, told) -> None:
    task = write_task(tmp_path / "tasks", "broken", "exit 0")
    break_it(task)
    assert run_main("eval", "--tasks", tmp_path / "tasks", "--checkpoint", MODEL) == 2
    error = capsys.readouterr().err
    assert "broken" in error
    assert told in error
    assert "Traceback" not in error


def test_missing_inputs(tmp_path: Path, write_task, capsys) -> None:
    assert run_main("eval", "--tasks", tmp_path / "none", "--checkpoint", MODEL) == 2
    assert f"there is no directory {tmp_path / 'none'}" in capsys.readouterr().err
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    assert run_main("eval", "--tasks", tasks, "--checkpoint", MODEL) == 2
    assert f"{tasks} holds no tasks" in capsys.readouterr().err
    write_task(tasks, "a", "exit 0")
    assert run_main("eval", "--tasks", tasks, "--checkpoint", tmp_path / "model") == 2
    assert "journeyman model fetch" in capsys.readouterr().err
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text("{}")
    assert run_main("eval", "--tasks", tasks, "--checkpoint", half) == 2
    assert f"{half} lacks model.safetensors, tokenizer.json" in capsys.readouterr().err


def test_unknown_driver_and_backend(tmp_path: Path, write_task, capsys) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks, "a", "exit 0")
    given = ("eval", "--tasks", tasks, "--checkpoint", MODEL)
    assert run_main(*given, "--backend", "gpu") == 2
    assert "'gpu'" in capsys.readouterr().err
    url = f"sqlite:///{tmp_path}/store.db"
    assert run_main(*given, "--driver", "docker", "--store", url) == 2
    assert "'docker'" in capsys.readouterr().err
