"""Parts of the factory that are logic alone."""

import hashlib
import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.tasks.instruction import Place, instruction
from journeyman.tasks.journal import Journal, content_key
from journeyman.tasks.oracle import Oracle, edit_strings, oracle_calls, oracle_json
from journeyman.tasks.projects import SMALL, Project, load_projects
from journeyman.tasks.sdist import pack, unpack
from journeyman.tasks.splitting import balanced, order_key, split_of
from journeyman.tasks.survey import choose_tests, evaluate
from journeyman.types import Task, UserError

# --- projects and their archives --------------------------------------------------------------


def test_no_project_is_in_two_splits_and_both_are_served() -> None:
    projects = load_projects()
    assert len({project.name for project in projects}) == len(projects) >= 6
    assert Counter(project.split for project in projects)["held_out"] >= 3
    assert {project.split for project in load_projects(SMALL)} == {"train", "held_out"}


def test_an_unknown_project_is_named() -> None:
    with pytest.raises(UserError, match="no project named nonesuch"):
        load_projects(["nonesuch"])


def sdist_of(tmp_path: Path, files: dict[str, bytes]) -> tuple[Project, Path]:
    path = tmp_path / "thing-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"thing-1/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    project = Project(
        name="thing",
        version="1",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        split="train",
        packages=("src/thing",),
        tests=("tests",),
    )
    return project, path


def test_nothing_that_gives_the_answer_away_is_unpacked(tmp_path: Path) -> None:
    wanted = {"src/thing/a.py": b"a", "tests/test_a.py": b"t", "LICENSE": b"l"}
    leaks = {
        "src/thing/__pycache__/a.cpython-311.pyc": b"x",
        "src/thing/a.py.orig": b"x",
        "src/thing.egg-info/PKG-INFO": b"x",
        "src/thing/.git/HEAD": b"x",
        "PKG-INFO": b"x",
        "build/lib/thing/a.py": b"x",
        "../evil": b"x",
    }
    project, path = sdist_of(tmp_path, {**wanted, **leaks})
    files = unpack(project, path)
    assert set(files) == {*wanted, "pytest.ini"}
    assert b"pythonpath = src ." in files["pytest.ini"]


def test_a_distribution_without_tests_is_refused(tmp_path: Path) -> None:
    project, path = sdist_of(tmp_path, {"src/thing/a.py": b"a"})
    with pytest.raises(UserError, match=r"thing-1.tar.gz has no tests"):
        unpack(project, path)


def test_archives_depend_on_contents_alone() -> None:
    assert pack({"b": b"1", "a": b"2"}) == pack({"a": b"2", "b": b"1"})
    assert pack({"a": b"1"}) != pack({"a": b"2"})


# --- splits ------------------------------------------------------------------------------------


@given(st.integers(), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_function_is_in_one_split_whatever_else_there_is(
    seed: int, project: str, path: str, name: str
) -> None:
    split = split_of("train", seed, project, path, name)
    assert split == split_of("train", seed, project, path, name)
    assert split in ("warm", "train")
    assert split_of("held_out", seed, project, path, name) == "held_out"


def test_shares_of_warm_and_train() -> None:
    splits = Counter(split_of("train", 1, "p", "a.py", f"f{i}") for i in range(2000))
    assert 0.5 < splits["warm"] / 2000 < 0.6


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers()), unique=True),
    st.integers(0, 40),
)
def test_balanced_takes_turns_between_groups(items: list[tuple[str, str, int]], most: int) -> None:
    chosen = balanced(
        items,
        most,
        [lambda item: item[0], lambda item: item[1]],
        lambda item: order_key(1, repr(item)),
    )
    assert len(chosen) == min(most, len(items)) == len(set(chosen))
    taken, there = Counter(i[0] for i in chosen), Counter(i[0] for i in items)
    short = max((taken[name] for name in there), default=0)
    assert all(taken[name] >= min(there[name], short - 1) for name in there)
    assert chosen == balanced(
        items[::-1],
        most,
        [lambda item: item[0], lambda item: item[1]],
        lambda item: order_key(1, repr(item)),
    )


# --- oracle and instruction --------------------------------------------------------------------

LINES = st.lists(st.sampled_from(["    a = 1", "    b = 2", "        a = 1", "x"]), min_size=1)


@given(LINES, st.data())
def test_the_edit_is_unique_and_puts_the_line_back(lines: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(lines) - 1))
    original = lines[index]
    mutated = original.replace("1", "2") if "1" in original else f"{original} + 1"
    broken = "\n".join([*lines[:index], mutated, *lines[index + 1 :]])
    try:
        old, new = edit_strings(broken, index + 1, original, mutated)
    except ValueError:
        return
    assert broken.count(old) == 1
    assert broken.replace(old, new) == "\n".join(lines)


def test_the_edit_is_the_whole_line_with_lines_before_it_where_needed() -> None:
    found = edit_strings("a\n    b < 2\nc", 2, "    b <= 2", "    b < 2")
    assert found == ("    b < 2", "    b <= 2")
    assert edit_strings("q\n  r\n  r", 3, "  s", "  r") == ("  r\n  r", "  r\n  s")


def test_a_line_that_stands_twice_is_tried_alone_before_its_context_is_given(
    tmp_path: Path,
) -> None:
    oracle = Oracle(path="a.py", offset=1, limit=3, old_string="  q\n  r", new_string="  q\n  s")
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "oracle.json").write_text(oracle_json(oracle))
    task = Task(id="t", instruction="", directory=str(tmp_path), split="warm", digest="")
    calls = oracle_calls(task)
    assert [name for name, _ in calls] == ["read", "edit", "edit", "submit"]
    edits = [(given["old_string"], given["new_string"]) for _, given in calls[1:3]]
    assert edits == [("  r", "  s"), ("  q\n  r", "  q\n  s")]


def test_the_instruction_names_test_failure_and_place() -> None:
    explanation = (
        "assert 1 == 2\n+  where 1 = <f at 0x7f00aa11bb22>()\nUse -v to get more diff\n? ^"
    )
    text = instruction("tests/test_a.py::test_b", explanation, Place("a/b.py", "C.f", 3, 7, 5))
    assert text == (
        "The test `tests/test_a.py::test_b` fails:\n"
        "assert 1 == 2\n+  where 1 = <f at 0x…>()\n"
        'The fault is in line 5 of "a/b.py", in `C.f`. See lines 3-7 (5 lines).'
    )


def test_long_failures_are_cut() -> None:
    text = instruction("t", "x" * 1000 + "\n" + "y\n" * 20, Place("a", "f", 1, 2))
    assert len(text) < 400 and "…" in text


# --- survey ------------------------------------------------------------------------------------


def report(outcomes: dict[str, str], **durations: float) -> dict[str, object]:
    return {
        "outcomes": outcomes,
        "durations": {test: durations.get(test, 0.01) for test in outcomes},
        "functions": [["p.py", 3], ["p.py", 9]],
        "calls": {test: [0] if test == "narrow" else [0, 1] for test in outcomes},
        "patched": ["builtins.exit"],
    }


def test_flaky_and_slow_tests_are_not_trusted() -> None:
    names = ["narrow", "wide", "flaky", "slow", "failing"]
    first = report(dict.fromkeys(names, "passed") | {"failing": "failed"})
    second = report(
        dict.fromkeys(names, "passed") | {"failing": "failed", "flaky": "failed"}, slow=3
    )
    found = evaluate(first, second)
    assert set(found.tests) == {"narrow", "wide"}
    assert (found.flaky, found.slow, found.patched) == (("flaky",), ("slow",), ("builtins.exit",))
    assert found.covering == {"p.py:3": ("narrow", "wide"), "p.py:9": ("wide",)}


def test_chosen_tests_keep_to_number_and_time() -> None:
    seconds = {"a": 0.3, "b": 0.3, "c": 0.05, "d": 9.0}
    assert choose_tests(["a", "b", "c"], seconds, 8, 0.4) == ["a", "c"]
    assert choose_tests(["c", "a"], seconds, 1, 0.4) == ["c"]
    assert choose_tests(["d"], seconds, 8, 0.4) == ["d"]


# --- journal -----------------------------------------------------------------------------------


def test_a_journal_outlives_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path).open() as journal:
        journal.put("a", {"x": 1})
        journal.put("a", {"x": 2})
    path.write_bytes(path.read_bytes() + b'{"key": "b", "val')
    with Journal(path).open() as journal:
        assert journal.get("a") == {"x": 2} and journal.get("b") is None
        journal.put("c", "")
    with Journal(path).open() as journal:
        assert journal.get("c") == "" and journal.get("a") == {"x": 2}


def test_two_builds_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    refused = pytest.raises(UserError, match="another build uses")
    with Journal(path).open(), refused, Journal(path).open():
        pass


def test_keys_tell_parts_from_each_other() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("a", b"b") == content_key("a", "b")
