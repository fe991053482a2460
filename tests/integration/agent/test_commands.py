"""`journeyman serve` and `journeyman agent` as a person uses them, with the real model."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from journeyman.agent.repository import pack
from journeyman.agent.server import app, serving
from journeyman.chat import ChatFormat, format_call
from journeyman.cli.agent import Outcome, Work, apply_patch, work_at
from journeyman.cli.composition import find_checkpoint
from journeyman.cli.main import main
from journeyman.inference import ScriptedSampler
from journeyman.sandbox.client import SandboxClient
from journeyman.store import Store
from journeyman.types import Budget, CompletionRequest, Environment, StopReason, UserError

COMMAND = [sys.executable, "-m", "journeyman.cli"]
CALLS = [
    ("edit", {"file_path": "pkg/mod.py", "old_string": "x + 2", "new_string": "x * 2"}),
    ("submit", {}),
]


def environment_of(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": str(tmp_path),
    }


Answers = list[list[tuple[str, dict[str, str]]]]


def worked(
    run: Callable[..., Any],
    service: SandboxClient,
    bare: Environment,
    chat: ChatFormat,
    work: Work,
    answers: Answers,
) -> tuple[Outcome, list[CompletionRequest]]:
    """What a person gets of a model that answers so in its first, second, … session, and what
    the model was asked first in each."""
    asked: list[CompletionRequest] = []

    def script_of(request: CompletionRequest) -> list[str]:
        if len(request.messages) == 2:
            asked.append(request)
        return [format_call(*call) for call in answers[len(asked) - 1]]

    async def body() -> Outcome:
        model = ScriptedSampler(chat, script_of)
        application = app(model, service, chat=chat, environment=bare)
        async with serving(application) as url:
            return await work_at(url, None, work)

    return run(body()), asked


def test_a_session_shows_a_patch_that_applies_to_the_persons_directory(
    run: Callable[..., Any],
    service: SandboxClient,
    bare: Environment,
    chat: ChatFormat,
    repository: Path,
    instruction: str,
) -> None:
    work = Work("", "tests", repository, pack(repository), Budget(), 0.0, attempts=3)
    before = (repository / "pkg/mod.py").read_bytes()
    outcome, asked = worked(run, service, bare, chat, work, [CALLS])
    assert (repository / "pkg/mod.py").read_bytes() == before, "only a patch may change it"
    assert [request.messages[-1].content for request in asked] == [instruction]
    assert outcome.test_passes
    # The directory may lie inside a larger repository.
    subprocess.run(["git", "init", "-q", repository.parent], check=True)
    apply_patch(outcome.patch, repository)
    assert (repository / "pkg/mod.py").read_bytes() == before.replace(b"x + 2", b"x * 2")
    with pytest.raises(UserError, match="does not apply"):
        apply_patch(outcome.patch, repository)


def test_a_failed_attempt_is_followed_by_a_fresh_one_until_the_test_passes(
    run: Callable[..., Any],
    service: SandboxClient,
    bare: Environment,
    chat: ChatFormat,
    repository: Path,
) -> None:
    work = Work("Mend it.", "tests", repository, pack(repository), Budget(), 0.0, attempts=3)
    wrong = [
        (name, values | {"new_string": "x + 4"} if values else values) for name, values in CALLS
    ]
    outcome, asked = worked(run, service, bare, chat, work, [wrong, CALLS])
    assert outcome.test_passes
    assert b"-    return x + 2\n+    return x * 2\n" in outcome.patch
    assert [request.temperature for request in asked] == [0.0, 1.0]
    assert all(request.messages[1].content.startswith("Mend it.\nThe test") for request in asked)
    outcome, asked = worked(run, service, bare, chat, work, [wrong] * 3)
    assert outcome.test_passes is False and len(asked) == 3
    assert b"x + 4" in outcome.patch


def test_the_newest_checkpoint_of_all_runs_is_taken(tmp_path: Path, model_dir: Path) -> None:
    for age, name in enumerate(["b", "a"]):
        file = tmp_path / name / "checkpoint" / "config.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (age, age))
    assert find_checkpoint(None, tmp_path) == tmp_path / "a" / "checkpoint"
    assert find_checkpoint(None, tmp_path / "none") == model_dir
    with pytest.raises(UserError, match="no checkpoint 'nothing'"):
        find_checkpoint("nothing")


@contextmanager
def serve(tmp_path: Path, model_dir: Path) -> Iterator[str]:
    """`journeyman serve` on a free port, ended as Ctrl-C ends it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--checkpoint", str(model_dir), "--port", str(port)]
    store = f"sqlite:///{tmp_path}/store.db"
    process = subprocess.Popen(
        [*COMMAND, "serve", *options, "--store", store],
        stdout=subprocess.PIPE,
        env=environment_of(tmp_path),
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in line
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


def test_serve_answers_people_and_openai_clients_and_ends_clean(
    tmp_path: Path, model_dir: Path, repository: Path
) -> None:
    with serve(tmp_path, model_dir) as url:
        body = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] <= 4
        person = agent(tmp_path, url, repository, "--turns", "1", "--tokens", "256")
        said = person.communicate(timeout=240)[1]
        assert person.returncode == 0 and "■" in said, said
        interrupt_an_agent(tmp_path, url, repository)
    store = Store(f"sqlite:///{tmp_path}/store.db")
    first, interrupted = store.episodes(run="sessions", kind="session")
    store.close()
    assert first.stop in {StopReason.TURNS, StopReason.TOKENS, StopReason.ANSWERED}
    assert first.prompt[1].content == "Fix the failing test."
    assert 0 < len(first.streams[0].token_ids) <= 256
    assert interrupted.stop is StopReason.CANCELLED
    assert not list(tmp_path.glob("journeyman-sandboxd-*")), "sandbox state is left behind"


def interrupt_an_agent(tmp_path: Path, url: str, repository: Path) -> None:
    """Ctrl-C while the model writes: the session is over on the server, too."""
    person = agent(tmp_path, url, repository, "--tokens", "8000")
    deadline = time.monotonic() + 120
    while not any(s["state"] == "running" for s in httpx.get(f"{url}/v1/sessions").json()):
        assert person.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    person.send_signal(signal.SIGINT)
    said = person.communicate(timeout=120)[1]
    assert person.returncode == 130
    assert "Traceback" not in said
    assert httpx.get(f"{url}/v1/sessions").json() == []


def agent(tmp_path: Path, url: str, repository: Path, *options: str) -> subprocess.Popen[str]:
    arguments = ["agent", "Fix the failing test.", "--repo", str(repository), "--server", url]
    return subprocess.Popen(
        [*COMMAND, *arguments, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment_of(tmp_path),
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["agent", "x", "--repo", "/nowhere/at/all"], "is no directory"),
        (["agent", "x", "--repo", ".", "--checkpoint", "nothing"], "no checkpoint 'nothing'"),
        (["agent", "x", "--repo", ".", "--server", "http://127.0.0.1:9"], "no answer from"),
        (["agent", "x", "--repo", ".", "--server", "u", "--store", "s"], "have no effect"),
        (["agent", "--repo", "."], "nothing to do"),
        (["serve", "--host", "0.0.0.0"], "without a token"),
        (["serve", "--model", "m"], "no effect without --model-url"),
    ],
)
def test_bad_input_is_named_with_its_cure(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert complaint in said and "Traceback" not in said
    assert len(said.strip().splitlines()) == 2, "what is wrong, and what to do about it"
    assert ended.value.code in {1, 2}
