import io
import tarfile
from pathlib import Path

import pytest

from journeyman.sandbox.client import AddTar, Copy, Run, SetEnv, Workdir
from journeyman.tasks.dockerfile import parse
from journeyman.tasks.environment import plan
from journeyman.tasks.harbor import load_tasks
from journeyman.types import UserError

FILES = {
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 30.0\n',
    "instruction.md": "Mend it.\n",
    "environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\nCOPY a.py /app/\n",
    "environment/a.py": "x = 1\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    directory = tmp_path / "mend"
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_a_directory_and_a_set_of_them(task: Path) -> None:
    (one,) = load_tasks(task)
    assert load_tasks(task.parent) == [one]
    assert (one.id, one.instruction, one.split) == ("mend", "Mend it.", "held_out")
    assert one.budget.deadline_s == 60 and one.provenance is None


def test_the_digest_covers_every_file_and_its_name(task: Path) -> None:
    seen = {load_tasks(task)[0].digest}
    (task / "tests" / "extra").write_text("")
    seen.add(load_tasks(task)[0].digest)
    (task / "tests" / "extra").rename(task / "tests" / "other")
    seen.add(load_tasks(task)[0].digest)
    (task / "tests" / "test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    seen.add(load_tasks(task)[0].digest)
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "tests/test.sh"])
def test_a_missing_file_is_named(task: Path, name: str) -> None:
    (task / name).unlink()
    with pytest.raises(UserError, match=f"mend is no task directory: it has no {name}"):
        load_tasks(task.parent)


def test_a_missing_dockerfile_is_named(task: Path) -> None:
    (task / "environment" / "Dockerfile").unlink()
    with pytest.raises(UserError, match=r"there is no .*mend/environment/Dockerfile"):
        load_tasks(task)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = ", "task.toml is broken"),
        ("metadata = 3", "'metadata' is not a table"),
        ("[verifier]\ntimeout_sec = 'x'", "verifier.timeout_sec is 'x'"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec is -1"),
        ("[metadata]\nsplit = 'dev'", "task.toml is broken"),
        ("[metadata.provenance]\nproject = 'x'", "task.toml is broken"),
        ("[metadata.budget]\nmoney = 1", "task.toml is broken"),
    ],
)
def test_a_broken_task_toml_is_named(task: Path, text: str, words: str) -> None:
    (task / "task.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_tasks(task)
    assert words in caught.value.cause and "mend" in caught.value.cause


def test_an_empty_set_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no tasks"):
        load_tasks(tmp_path)
    with pytest.raises(UserError, match="there is no directory"):
        load_tasks(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "base",
    [
        "python:3.11",
        "python:3",
        "python:3.11.7-slim-bookworm",
        "python:3-slim",
        "debian:bookworm",
        "debian:bookworm-slim",
        "debian:12",
        "journeyman/default",
        "docker.io/library/python:3",
    ],
)
def test_bases_that_the_default_template_serves(task: Path, base: str) -> None:
    (task / "environment" / "Dockerfile").write_text(f"FROM {base}\n")
    assert load_tasks(task)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM python:3.12", "FROM python:3.12"),
        ("FROM ubuntu:24.04", "FROM ubuntu:24.04"),
        ("FROM python:3.11 AS build", "FROM python:3.11 AS build"),
        ("FROM python:3.11\nRUN pip install numpy", "'pip' needs a network"),
        ("FROM python:3.11\nRUN apt-get update && \\\n  apt-get install -y gcc", "'apt-get' needs"),
        ("FROM python:3.11\nRUN git clone x", "'git clone' needs"),
        ("FROM python:3.11\nRUN --mount=type=cache true", "options of RUN"),
        ("FROM python:3.11\nADD https://x/y.tar /", "no network"),
        ("FROM python:3.11\nCOPY --from=x a b", "only plain"),
        ("FROM python:3.11\nUSER nobody", "USER nobody"),
        ("FROM python:3.11\nENTRYPOINT x", "ENTRYPOINT x"),
        ("WORKDIR /app", "does not begin with FROM"),
    ],
)
def test_dockerfiles_that_ask_for_more_are_refused_by_name(
    task: Path, text: str, words: str
) -> None:
    (task / "environment" / "Dockerfile").write_text(text + "\n")
    with pytest.raises(UserError) as caught:
        load_tasks(task)
    assert words in caught.value.cause and "mend/environment/Dockerfile" in caught.value.cause


def test_a_verifier_that_needs_a_network_is_refused_by_name(task: Path) -> None:
    (task / "tests" / "test.sh").write_text("uvx pytest /tests\n")
    with pytest.raises(UserError, match=r"mend/tests/test.sh uses 'uvx'"):
        load_tasks(task)


def tar(names: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_heavy_layers_make_the_template_and_trailing_copies_the_files(task: Path) -> None:
    context = task / "environment"
    (context / "p.tar.gz").write_bytes(tar({"b.py": b"y"}))
    (context / "broken" / "pkg").mkdir(parents=True)
    (context / "broken" / "pkg" / "m.py").write_text("z")
    (context / "Dockerfile").write_text(
        'FROM python:3.11\nENV A=1 B="two words"\nWORKDIR /app\nADD p.tar.gz .\n'
        'COPY a.py first.py\nRUN touch \\\n  done\nCOPY broken/ /app/\nCOPY ["a.py", "sub/"]\n'
    )
    spec, files, workdir = plan(parse(context / "Dockerfile"))
    assert workdir == "/app"
    assert files == {"/app/pkg/m.py": b"z", "/app/sub/a.py": b"x = 1\n"}
    kinds = [layer for layer in spec.layers if not isinstance(layer, SetEnv)]
    assert kinds[0] == Workdir(path="/app")
    assert isinstance(kinds[1], AddTar) and kinds[1].path == "/app"
    assert kinds[2] == Copy(path="/app/first.py", data=b"x = 1\n")
    assert kinds[3] == Run(command="touch done")
    variables = {layer.name: layer.value for layer in spec.layers if isinstance(layer, SetEnv)}
    assert variables["A"] == "1" and variables["B"] == "two words"
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"


def test_files_from_outside_the_context_are_refused(task: Path) -> None:
    (task / "environment" / "Dockerfile").write_text("FROM python:3.11\nCOPY ../task.toml /x\n")
    with pytest.raises(UserError, match=r"line 2: there is no '../task.toml'"):
        plan(parse(task / "environment" / "Dockerfile"))
