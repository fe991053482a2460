"""The small task set as built by `make setup`: what is in it, what an agent can reach of it."""

from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.observe import Progress
from journeyman.sandbox.client import SandboxClient
from journeyman.tasks.environment import prepare
from journeyman.tasks.factory import Plan, build
from journeyman.tasks.harbor import load_tasks
from journeyman.tasks.oracle import oracle_calls, read_oracle
from journeyman.tasks.projects import SMALL, load_projects
from journeyman.tasks.size import EpisodeSize
from journeyman.types import Split, Task

from .conftest import Run


def test_no_project_and_no_function_is_in_two_splits(small_set: list[Task]) -> None:
    projects: dict[str, set[str]] = {}
    functions: dict[tuple[str, str, str], set[str]] = {}
    for task in small_set:
        origin = task.provenance
        assert origin is not None
        kind = "held_out" if task.split == "held_out" else "training"
        projects.setdefault(origin.project, set()).add(kind)
        where = (origin.project, origin.path, origin.function)
        functions.setdefault(where, set()).add(task.split)
    assert {task.split for task in small_set} == {"warm", "train", "held_out"}
    assert all(len(kinds) == 1 for kinds in projects.values())
    assert all(len(splits) == 1 for splits in functions.values())


def test_the_oracle_is_one_line_read_edited_and_submitted(small_set: list[Task]) -> None:
    for task in small_set:
        oracle = read_oracle(task)
        broken = Path(task.directory) / "environment" / "broken" / oracle.path
        assert broken.read_text(encoding="utf-8").count(oracle.old_string) == 1
        old, new = oracle.old_string.split("\n"), oracle.new_string.split("\n")
        assert len(old) == len(new)
        assert [a for a, b in zip(old, new, strict=True) if a != b] == old[-1:]
        assert [name for name, _ in oracle_calls(task)] == ["read", "edit", "submit"]
        last = oracle.offset + oracle.limit - 1
        assert f"lines {oracle.offset}-{last} ({oracle.limit} lines)." in task.instruction


def test_nothing_the_agent_can_reach_gives_the_answer_away(
    task: Task, sandboxes: SandboxClient, run: Run
) -> None:
    async def reachable() -> str:
        sandbox = await sandboxes.create(await prepare(task, sandboxes))
        try:
            answer = read_oracle(task).new_string.split("\n")[-1]
            search = 'grep -rlF --exclude-dir=proc --exclude-dir=sys -e "$1" / 2>/dev/null'
            names = (
                "find / -path /proc -prune -o \\( -name 'inflection*' -o -name '*.orig' "
                "-o -name .git -o -path '/app/*__pycache__*' \\) -print"
            )
            script = f"{search}; {names}; ls -d /tests /solution /opt/journeyman 2>/dev/null; true"
            done = await sandbox.exec(["sh", "-c", script, "sh", answer], timeout_s=120)
            return done.stdout.decode()
        finally:
            await sandbox.close()

    assert run(reachable()).split() == ["/app/inflection"]


def test_a_rebuild_finds_everything_in_the_journal_and_makes_the_same_set(
    small_set: list[Task], sandboxes: SandboxClient, run: Run, tmp_path: Path, model_dir: Path
) -> None:
    counts: dict[Split, int] = {"warm": 4, "train": 4, "held_out": 4}
    work = tmp_path / "work"
    work.mkdir()
    ours = home_dir() / "build" / "tasks"
    (work / "downloads").symlink_to(ours / "downloads")
    (work / "again.jsonl").write_bytes((ours / "small.jsonl").read_bytes())
    plan = Plan(load_projects(SMALL), counts, 1, tmp_path / "again", work)
    with Progress() as progress:
        run(build(plan, sandboxes, EpisodeSize(model_dir), progress))
    again = load_tasks(tmp_path / "again")
    assert [(task.id, task.digest) for task in again] == [
        (task.id, task.digest) for task in small_set
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "work"]
