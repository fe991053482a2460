"""bash, read, grep and the binding of arguments."""

import asyncio
import os
from pathlib import Path

import pytest

from journeyman.agent.tools import BASH, GREP, READ, ToolRefusal, Workspace
from journeyman.agent.tools.arguments import bind
from journeyman.agent.tools.bash import BashArguments
from journeyman.agent.tools.grep import GrepArguments
from journeyman.agent.tools.read import ReadArguments
from journeyman.agent.tools.text import bound, clean


def bash(workspace: Workspace, command: str, timeout: float | None = None) -> str:
    return asyncio.run(BASH.run(workspace, BashArguments(command=command, timeout=timeout)))


def read(workspace: Workspace, name: str, offset: int = 1, limit: int | None = None) -> str:
    arguments = ReadArguments(file_path=name, offset=offset, limit=limit)
    return asyncio.run(READ.run(workspace, arguments))


def grep(workspace: Workspace, pattern: str, path: str = ".") -> str:
    return asyncio.run(GREP.run(workspace, GrepArguments(pattern=pattern, path=path)))


def test_bash_gives_output_in_order_and_how_it_ended(workspace: Workspace) -> None:
    assert bash(workspace, "echo out; echo err >&2; echo out") == "out\nerr\nout"
    assert bash(workspace, "echo x; exit 3") == "x\nexit 3"
    assert bash(workspace, "true") == "no output"
    assert bash(workspace, "cat <<'E'\n$x 'y'\nE") == "$x 'y'"


@pytest.mark.parametrize("command", ["read -r answer", "cat", "python3 -", "sort"])
def test_a_command_that_waits_for_input_finds_its_end(workspace: Workspace, command: str) -> None:
    assert "timed out" not in bash(workspace, command)


def test_git_does_not_page_or_open_an_editor(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    config = "-c user.name=a -c user.email=a@b"
    said = bash(workspace, f"git init -q . && git add a && git {config} commit -q")
    assert "exit 1" in said
    bash(workspace, f"git {config} commit -qm one")
    assert "one" in bash(workspace, "git -p log")


def test_a_hanging_command_times_out_with_what_it_said(workspace: Workspace) -> None:
    said = bash(workspace, "echo begun; sleep 60", timeout=0.5)
    assert said == "begun\ntimed out after 0.5 s"


def test_terminal_output_is_cleaned_and_bounded(workspace: Workspace) -> None:
    assert bash(workspace, r"printf '\033[31mred\033[0m \033]0;title\007done\n'") == "red done"
    assert bash(workspace, r"printf '10%%\r50%%\r100%%\n'") == "100%"
    long = bash(workspace, "head -c 2000000 /dev/zero | tr '\\0' x; echo; echo tail")
    assert len(long) < 2500
    assert long.endswith("tail")


def test_bound_keeps_head_and_tail() -> None:
    text = "\n".join(f"line {n}" for n in range(5000))
    short = bound(text, 300)
    assert short.startswith("line 0\n") and short.endswith("line 4999")
    assert "characters cut]" in short and len(short) < 350


@pytest.mark.parametrize("text", ["\x1b", "\x1b]0;never ended", "\x9b31", "a\x00b\x07c", "\r\r\n"])
def test_clean_leaves_no_control_character(text: str) -> None:
    assert not [c for c in clean(text) if ord(c) < 32 and c not in "\n\t"]


def test_read_says_which_lines_of_how_many(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"".join(b"line %d\r\n" % n for n in range(1, 11)))
    assert read(workspace, "f", 3, 2) == "3-4 of 10\nline 3\nline 4"
    assert read(workspace, "f", 9, 50) == "9-10 of 10\nline 9\nline 10"
    assert read(workspace, "f", 0, 1) == "1-1 of 10\nline 1"
    with pytest.raises(ToolRefusal, match="has only 10 lines"):
        read(workspace, "f", 11)


def test_read_bounds_its_output_at_whole_lines_and_says_so(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("x" * 99 + "\n" * 1 + ("y" * 99 + "\n") * 99)
    text = read(workspace, "f")
    header, *lines = text.split("\n")
    assert header == f"1-{len(lines)} of 100"
    assert len(text) <= 2100 and all(len(line) == 99 for line in lines)


def test_read_of_odd_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "long").write_text("z" * 1_500_000)
    assert read(workspace, "empty") == "empty file"
    assert len(read(workspace, "long")) < 2200
    for name in ("missing", "."):
        with pytest.raises(ToolRefusal):
            read(workspace, name)


def test_grep_names_path_and_line(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("import os\n\ndef run():\n    pass\n")
    assert grep(workspace, r"def \w+\(") == "pkg/a.py:3:def run():"
    assert grep(workspace, "run", "pkg/a.py") == "pkg/a.py:3:def run():"
    assert grep(workspace, "nothing like it") == "no match"
    with pytest.raises(ToolRefusal, match="not a regular expression"):
        grep(workspace, "(")
    with pytest.raises(ToolRefusal, match="no file nowhere"):
        grep(workspace, "x", "nowhere")


def test_grep_treats_ignored_hidden_and_special_files_as_ripgrep_does(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n")
    for name in ("a.log", "keep.log", "plain", ".hidden"):
        (tmp_path / name).write_text("needle\n")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(".")
    assert grep(workspace, "needle") == "keep.log:1:needle\nplain:1:needle"


def test_grep_bounds_many_matches_and_long_lines(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "many").write_text("needle\n" * 5000)
    assert grep(workspace, "needle").endswith(" more")
    (tmp_path / "many").write_text("x" * 700_000 + "needle" + "y" * 700_000)
    said = grep(workspace, "needle")
    assert "needle" in said and len(said) < 600


def test_an_option_like_pattern_is_a_pattern(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("--files\n")
    assert grep(workspace, "--files") == "a:1:--files"


@pytest.mark.parametrize(
    ("given", "bound_to", "repair"),
    [
        ({"file_path": "a", "offset": "3"}, {"file_path": "a", "offset": 3}, "offset read as int"),
        ({"path": "a"}, {"file_path": "a"}, "path renamed file_path"),
        ({"file_path": "a", "limit": None}, {"file_path": "a"}, "limit null dropped"),
        ({"file_path": "a", "explanation": "why"}, {"file_path": "a"}, "explanation dropped"),
        ({"file_path": 7}, {"file_path": "7"}, "file_path read as str"),
    ],
)
def test_arguments_are_repaired_where_there_is_one_meaning(
    given: dict, bound_to: dict, repair: str
) -> None:
    arguments, repairs = bind(READ, given)
    assert arguments == ReadArguments(**bound_to)
    assert repairs == (repair,)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "file_path is missing; use read(file_path, offset?, limit?)"),
        ({"file_path": "a", "colour": 1}, "colour is unknown; use read("),
        ({"file_path": "a", "offset": "three"}, "offset: input should be a valid integer"),
        ({"file_path": "a", "offset": -4}, "offset: input should be greater"),
        ({"file_path": "a", "path": "b"}, "path and file_path are one"),
        ({"file_path": ["a"]}, "file_path: input should be a valid string"),
    ],
)
def test_arguments_without_one_meaning_are_refused_with_the_signature(
    given: dict, complaint: str
) -> None:
    with pytest.raises(ToolRefusal) as refusal:
        bind(READ, given)
    assert str(refusal.value).startswith(complaint)
    assert READ.signature in str(refusal.value)
