"""`edit`: the asked change and not a byte more."""

import asyncio
import os
from pathlib import Path

import pytest

from journeyman.agent.tools import EDIT, READ, ToolRefusal, Workspace
from journeyman.agent.tools.edit import EditArguments
from journeyman.agent.tools.read import ReadArguments


def edit(workspace: Workspace, name: str, old: str, new: str, replace_all: bool = False) -> str:
    arguments = EditArguments(
        file_path=name, old_string=old, new_string=new, replace_all=replace_all
    )
    return asyncio.run(EDIT.run(workspace, arguments))


def refused(workspace: Workspace, name: str, old: str, new: str, replace_all: bool = False) -> str:
    with pytest.raises(ToolRefusal) as refusal:
        edit(workspace, name, old, new, replace_all)
    return str(refusal.value)


def test_the_result_names_the_line(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"one\ntwo\nthree\n")
    assert edit(workspace, "a.py", "two", "2") == "edited line 2"
    assert (tmp_path / "a.py").read_bytes() == b"one\n2\nthree\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param(b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", b"x\r\ny\r\nc\r\n", id="crlf"),
        pytest.param(b"a\nb\r\nc\n", "b", "x\ny", b"a\nx\r\ny\r\nc\n", id="mixed-ends"),
        pytest.param(b"a\nb", "b", "c", b"a\nc", id="no-final-newline"),
        pytest.param(b"\xef\xbb\xbfa = 1\n", "a = 1", "a = 2", b"\xef\xbb\xbfa = 2\n", id="bom"),
        pytest.param(
            "\ufeffa\r\né\r\n".encode("utf-16-le"),
            "é",
            "è",
            "\ufeffa\r\nè\r\n".encode("utf-16-le"),
            id="utf-16",
        ),
        pytest.param(b"caf\xe9 = 1\n", "= 1", "= 2", b"caf\xe9 = 2\n", id="latin-1"),
        pytest.param(b"x = 1\n", "1", r"\1 $& \g<0> \\", b"x = \\1 $& \\g<0> \\\\\n", id="literal"),
        pytest.param(b"a.b\naxb\n", "a.b", "c", b"c\naxb\n", id="search-is-no-pattern"),
        pytest.param(b"a\x0cb\nc\n", "c", "d", b"a\x0cb\nd\n", id="form-feed"),
    ],
)
def test_what_was_not_asked_for_stays_byte_for_byte(
    workspace: Workspace, before: bytes, old: str, new: str, after: bytes
) -> None:
    file = Path(workspace.workdir) / "f"
    file.write_bytes(before)
    edit(workspace, "f", old, new)
    assert file.read_bytes() == after


def test_replace_all_keeps_line_ends_everywhere(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\nb\r\na\r\n")
    edit(workspace, "f", "a", "x\ny", True)
    assert (tmp_path / "f").read_bytes() == b"x\r\ny\r\nb\r\nx\r\ny\r\n"


def test_mode_and_symbolic_link_are_kept(workspace: Workspace, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "tool"
    script.parent.mkdir()
    script.write_bytes(b"#!/bin/sh\necho 1\n")
    script.chmod(0o755)
    (tmp_path / "link").symlink_to("bin/tool")
    edit(workspace, "link", "echo 1", "echo 2")
    assert (tmp_path / "link").is_symlink()
    assert script.read_bytes() == b"#!/bin/sh\necho 2\n"
    assert script.stat().st_mode & 0o7777 == 0o755


def test_tabs_in_the_file_and_spaces_in_the_search(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"def f():\n\tif x:\n\t\treturn 1\n\treturn 2\n")
    old = "    if x:\n        return 1"
    said = edit(workspace, "f", old, "    if x:\n        y()\n        return 3")
    assert said == "edited line 2 (indentation adjusted)"
    assert (tmp_path / "f").read_bytes() == (
        b"def f():\n\tif x:\n\t\ty()\n\t\treturn 3\n\treturn 2\n"
    )


def test_search_without_indentation_keeps_the_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"def f():\n    if x:\n        return 1\n")
    edit(workspace, "f", "if x:\n    return 1", "if not x:\n    return 1")
    assert (tmp_path / "f").read_bytes() == b"def f():\n    if not x:\n        return 1\n"


def test_indentation_tolerance_needs_a_unique_place(workspace: Workspace, tmp_path: Path) -> None:
    text = b"\tif x:\n\t\treturn 1\n\t\tif x:\n\t\t\treturn 1\n"
    (tmp_path / "f").write_bytes(text)
    assert "2 times, lines 1, 3" in refused(
        workspace, "f", "    if x:\n        return 1", "    pass", True
    )
    assert (tmp_path / "f").read_bytes() == text


def test_indentation_that_maps_two_ways_is_not_guessed(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"  a\n      b\n")
    refused(workspace, "f", "    a\n    b", "    c\n    d")


def test_three_places_are_refused_with_count_and_lines(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x\ny\nx\nx\n")
    assert "3 times, lines 1, 3, 4" in refused(workspace, "f", "x", "z")
    assert (tmp_path / "f").read_bytes() == b"x\ny\nx\nx\n"
    assert edit(workspace, "f", "x", "z", True) == "edited lines 1, 3, 4"
    assert (tmp_path / "f").read_bytes() == b"z\ny\nz\nz\n"


def test_overlapping_places_are_two_meanings(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"aaa\n")
    assert "2 times" in refused(workspace, "f", "aa", "b")


def test_no_place_is_refused_with_the_line_that_differs(
    workspace: Workspace, tmp_path: Path
) -> None:
    text = b"def f(a):\n    total = 0\n    for x in a:\n        total += x\n    return total\n"
    (tmp_path / "f.py").write_bytes(text)
    said = refused(workspace, "f.py", "    for x in a:\n        total -= x\n", "")
    assert said == "old_string is not in f.py; line 4 is:\n        total += x"
    assert "line 5 is:\n    return total" in refused(workspace, "f.py", "return totals", "x")
    assert refused(workspace, "f.py", "zzzzqqqq", "x") == "old_string is not in f.py"
    assert (tmp_path / "f.py").read_bytes() == text


def test_look_alikes_match_only_when_unique_and_are_reported(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("say(\u201chi\u201d)\u00a0\u2013 1\n")
    said = edit(workspace, "f", 'say("hi") - 1', 'say("ho")')
    assert said == "edited line 1 (look-alike characters matched)"
    assert (tmp_path / "f").read_text() == 'say("ho")\n'
    (tmp_path / "f").write_text("\u2018a\u2019 \u201aa\u2019\n")
    workspace.read_texts.clear()
    assert "2 times" in refused(workspace, "f", "'a'", "b", True)


def test_an_edit_from_an_old_read_is_refused_once_with_what_changed(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\nc\n")
    asyncio.run(READ.run(workspace, ReadArguments(file_path="f")))
    (tmp_path / "f").write_bytes(b"a\nB\nc\n")
    said = refused(workspace, "f", "c", "d")
    assert "at line 2" in said and "- b" in said and "+ B" in said
    assert (tmp_path / "f").read_bytes() == b"a\nB\nc\n"
    edit(workspace, "f", "c", "d")
    assert (tmp_path / "f").read_bytes() == b"a\nB\nd\n"


def test_own_edits_are_no_surprise(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\n")
    asyncio.run(READ.run(workspace, ReadArguments(file_path="./f")))
    edit(workspace, "f", "a", "x")
    edit(workspace, str(tmp_path / "f"), "b", "y")
    assert (tmp_path / "f").read_bytes() == b"x\ny\n"


def test_an_empty_search_creates_a_file_and_never_overwrites(
    workspace: Workspace, tmp_path: Path
) -> None:
    assert edit(workspace, "new/mod.py", "", "x = 1\n") == "created new/mod.py"
    assert (tmp_path / "new" / "mod.py").read_bytes() == b"x = 1\n"
    assert "is empty and the file is not" in refused(workspace, "new/mod.py", "", "y")


def test_what_is_no_text_file_gives_a_clear_result(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "b").write_bytes(b"\x7fELF\0\0")
    with open(tmp_path / "huge", "wb") as file:
        os.truncate(file.fileno(), 200 << 20)
    assert refused(workspace, "d", "a", "b") == "d is a directory"
    assert refused(workspace, "b", "a", "b") == "b is binary"
    assert "larger than" in refused(workspace, "huge", "a", "b")
    assert refused(workspace, "no/such.py", "a", "b") == "no file no/such.py"


def test_equal_strings_change_nothing(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\n")
    assert refused(workspace, "f", "a", "a") == "old_string and new_string are equal"


def test_a_character_the_encoding_lacks_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"caf\xe9\n")
    assert "latin-1" in refused(workspace, "f", "caf", "漢")
    assert (tmp_path / "f").read_bytes() == b"caf\xe9\n"


def test_a_search_in_a_very_long_file_ends_soon(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("    x = 1\n" * 300_000 + "y = 2\n")
    said = refused(workspace, "f", "    x = 1\n    z = 3\n    x = 1\n", "")
    assert said.startswith("old_string is not in f")
