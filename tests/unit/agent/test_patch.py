"""Patches: what `git apply` makes of them is what the agent left."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.agent.patch import unified

CONTENT = st.one_of(
    st.none(), st.lists(st.sampled_from(["a", "b", "c\r", "\x0c", ""]), max_size=8).map(
        lambda lines: "\n".join(lines).encode()
    ),
)  # fmt: skip


@given(before=st.tuples(CONTENT, CONTENT), after=st.tuples(CONTENT, CONTENT))
@settings(max_examples=25, deadline=None)
def test_git_applies_every_patch(
    tmp_path_factory: pytest.TempPathFactory,
    before: tuple[bytes | None, ...],
    after: tuple[bytes | None, ...],
) -> None:
    names = ("a.py", "pkg/b c.py")
    root = tmp_path_factory.mktemp("tree")
    for name, content in zip(names, before, strict=True):
        if content is not None:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(content)
    patch = unified(dict(zip(names, before, strict=True)), dict(zip(names, after, strict=True)))
    if patch:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        subprocess.run(command, input=patch, cwd=root, check=True)
    for name, content in zip(names, after, strict=True):
        file = root / name
        assert (file.read_bytes() if file.exists() else None) == content


def test_the_diff_is_only_the_change() -> None:
    before = {"a": b"".join(b"line %d\r\n" % n for n in range(50))}
    after = {"a": before["a"].replace(b"line 25\r\n", b"line 25!\r\n")}
    changed = [line for line in unified(before, after).split(b"\n") if line[:1] in (b"+", b"-")]
    assert changed == [b"--- a/a", b"+++ b/a", b"-line 25\r", b"+line 25!\r"]


@pytest.mark.parametrize("name", ["../out", "a/../../b", "/etc/x", "a\nb", 'a"b', "a\udcffb"])
def test_a_hostile_name_is_left_out_and_said(name: str) -> None:
    patch = unified({name: None}, {name: b"x\n"})
    assert patch.startswith(b"Left out: ") and b"diff" not in patch


def test_binary_files_are_named_and_caches_are_not() -> None:
    after: dict[str, bytes | None] = {"b": b"\0", "__pycache__/x.pyc": b"\0", ".git/HEAD": b"x"}
    assert unified(dict.fromkeys(after), after) == b"Not shown: b is binary or very large\n"


def test_a_patch_never_leaves_the_tree(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path)
    patch = unified({"link/out": None}, {"link/out": b"x\n"})
    command = ["git", "apply", "-"]
    subprocess.run(command, input=patch, cwd=tmp_path / "tree", check=False)
    assert not (tmp_path / "out").exists()
