"""The whole main job in small, in a process of its own: killed in the middle of a reinforcement
step, resumed, and judged by what it leaves."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from journeyman.store import Ledger, State, Store
from journeyman.types import FailureKind, Task

SETTINGS = [
    "tasks.warm=4",
    "tasks.held_out=4",
    "warm_start.learning_rate=3e-4",
    "warm_start.episodes_per_step=4",
    "evaluation.base=false",
    "agent.reply_tokens=96",
]
LEARNING = [
    "tasks.train=4",
    "warm_start.epochs=8",
    # Few steps teach a small model form before substance: the format term makes rewards differ.
    "reinforcement.format_reward=0.25",
    "reinforcement.steps=3",
    "reinforcement.groups_per_step=2",
    "reinforcement.group_size=4",
    "reinforcement.updates_per_step=2",
    "reinforcement.checkpoint_every=2",
    "evaluation.samples=1",
]
ONE_STEP = [
    *(s for s in LEARNING if not s.startswith(("reinforcement.steps", "evaluation."))),
    "reinforcement.steps=1",
    "evaluation.samples=4",
]
WITH_CONTROLS = [
    *(s for s in ONE_STEP if not s.startswith("evaluation.")),
    "evaluation.samples=2",
    "evaluation.greedy=true",
    "evaluation.pass_at=2",
    "controls.plateau=true",
    "controls.plateau_epochs=1",
    "controls.continued=true",
]


class Run:
    """One run of the main job; its process may die, its folder and store stay."""

    def __init__(self, folder: Path, tasks: Path, settings: Sequence[str] = LEARNING) -> None:
        self.folder = folder
        self.root = folder / "runs" / "quickstart"
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.settings = [*SETTINGS, *settings, f"tasks.set={tasks}", f"store.url={self.url}"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder / "stderr").open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "journeyman.cli", "quickstart", *arguments],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def states(self) -> list[State]:
        if not self.root.is_dir():
            return []
        store = Store(self.url)
        try:
            return list(Ledger(store, "quickstart").states().values())
        finally:
            store.close()

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()[-3000:]


def kill(process: subprocess.Popen[str]) -> None:
    """The driver at once, with no chance to clean up; what it started has to notice by itself."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def sandbox_processes() -> set[int]:
    """Of every sandbox on this machine."""
    found = subprocess.run(["pgrep", "-f", "runsc|bwrap"], capture_output=True, text=True)
    return {int(line) for line in found.stdout.split()}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_stop_cleans_up_and_says_how_to_go_on(
    tmp_path: Path, small_tasks: list[Task], number: signal.Signals, status: int
) -> None:
    before = sandbox_processes()
    run = Run(tmp_path, Path(small_tasks[0].directory).parent)
    sets = [part for setting in run.settings for part in ("--set", setting)]
    process = run.start(*sets)
    deadline = time.monotonic() + 120
    while not (run.root / "replayed").is_file():
        assert process.poll() is None, run.errors()
        assert time.monotonic() < deadline, run.errors()
        time.sleep(0.2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status, run.errors()
    assert output == ""
    assert f"continue with --resume {run.root}" in run.errors()
    assert "Traceback" not in run.errors()
    assert "SIGTERM" not in run.errors()
    assert sandbox_processes() <= before


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, small_tasks: list[Task], model_dir: Path
) -> Iterator[tuple[Run, dict[str, Any]]]:
    run = Run(tmp_path_factory.mktemp("job"), Path(small_tasks[0].directory).parent)
    sets = [part for setting in run.settings for part in ("--set", setting)]
    first = run.start(*sets)
    deadline = time.monotonic() + 280
    # The second step's episodes are running while the first step is applied.
    while not {State.APPLIED, State.RUNNING} <= set(run.states()):
        assert first.poll() is None, run.errors()
        assert time.monotonic() < deadline, run.errors()
        time.sleep(0.2)
    kill(first)
    second = run.start("--resume", str(run.root))
    output, _ = second.communicate(timeout=280)
    assert second.returncode == 0, run.errors()
    yield run, json.loads(output.splitlines()[-1])


@pytest.mark.timeout(600)
def test_every_prompt_is_used_once_although_the_run_was_killed(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    run, _ = finished
    store = Store(run.url)
    ledger = Ledger(store, "quickstart")
    assert set(run.states()) <= {State.APPLIED, State.DROPPED}
    assert ledger.last_applied() == 3
    prompts = ledger.leased_prompts(0)
    assert len(prompts) == len(set(prompts)) == 4
    assert ledger.audit(0, prompts).whole
    steps = [step for step, _ in store.metric("quickstart", "train_loss")]
    assert steps == [1, 2, 3]


def test_the_summary_has_rates_with_intervals_and_the_paired_gain(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    run, summary = finished
    for phase in ("warm", "rl"):
        assert summary[phase]["episodes"] == 4
        assert summary[phase]["low"] <= summary[phase]["solved"] <= summary[phase]["high"]
    assert summary["gain"] == summary["rl"]["solved"] - summary["warm"]["solved"]
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    assert summary["seconds"] > 0
    assert summary["run"] == str(run.root)


def test_tokens_of_a_step_have_the_trainers_own_logprobs(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    store = Store(finished[0].url)
    differences = store.metric("quickstart", "train_max_logprob_difference")
    assert len(differences) == 3
    assert max(value for _, value in differences) < 0.1


def test_the_checkpoint_opens_in_transformers_and_the_report_is_there(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = finished
    model = AutoModelForCausalLM.from_pretrained(run.root / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(run.root / "checkpoint")
    with torch.no_grad():
        logits = model(**tokenizer("def add(a, b):", return_tensors="pt")).logits
    assert torch.isfinite(logits).all()
    report = json.loads((run.root / "report.json").read_text())
    assert [result["name"] for result in report["results"]] == ["warm", "rl"]
    assert "<svg" in (run.root / "report.html").read_text()


def test_a_finished_run_resumed_again_only_repeats_its_summary(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    run, summary = finished
    again = run.start("--resume", str(run.root))
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, run.errors()
    assert json.loads(output.splitlines()[-1]) == summary


def test_a_finished_run_keeps_only_the_training_state_of_its_last_step(
    finished: tuple[Run, dict[str, Any]],
) -> None:
    training = finished[0].root / "training"
    assert [path.name for path in training.iterdir()] == ["step-00003"]


def test_no_attempt_was_made_twice(finished: tuple[Run, dict[str, Any]]) -> None:
    attempts = attempts_made(finished[0])
    assert len(attempts) == len(set(attempts))
    by_kind = Counter(kind for kind, _, _ in attempts)
    assert by_kind["oracle"] == 4
    assert by_kind["held_out"] == 8


def attempts_made(run: Run) -> list[tuple[str, str, int]]:
    """Kind, group and index of every episode in the store that no machine's failure ended."""
    return [
        (episode.kind, episode.group, episode.index)
        for episode in Store(run.url).episodes(run="quickstart")
        if episode.failure is None or episode.failure.kind != FailureKind.INFRA
    ]


@pytest.mark.timeout(600)
def test_killed_while_it_replays_or_evaluates_it_keeps_what_was_done(
    tmp_path: Path, small_tasks: list[Task]
) -> None:
    run = Run(tmp_path, Path(small_tasks[0].directory).parent, ONE_STEP)
    arguments = [part for setting in run.settings for part in ("--set", setting)]
    for enough in (1, 4 + 6):  # while it replays four, then while it evaluates sixteen
        process = run.start(*arguments)
        deadline = time.monotonic() + 200
        while not run.root.is_dir() or len(attempts_made(run)) < enough:
            assert process.poll() is None, run.errors()
            assert time.monotonic() < deadline, run.errors()
            time.sleep(0.1)
        kill(process)
        arguments = ["--resume", str(run.root)]
    before = {episode.id for episode in Store(run.url).episodes(run="quickstart")}
    last = run.start(*arguments)
    output, _ = last.communicate(timeout=200)
    assert last.returncode == 0, run.errors()
    summary = json.loads(output.splitlines()[-1])
    assert summary["warm"]["episodes"] == summary["rl"]["episodes"] == 16
    attempts = attempts_made(run)
    assert len(attempts) == len(set(attempts))
    by_kind = Counter(kind for kind, _, _ in attempts)
    assert (by_kind["oracle"], by_kind["held_out"]) == (4, 32)
    after = {episode.id for episode in Store(run.url).episodes(run="quickstart")}
    assert before <= after


@pytest.mark.timeout(600)
def test_the_long_form_measures_its_controls_in_every_way_although_it_was_killed_in_the_last(
    tmp_path: Path, small_tasks: list[Task]
) -> None:
    run = Run(tmp_path, Path(small_tasks[0].directory).parent, WITH_CONTROLS)
    first = run.start(*(part for setting in run.settings for part in ("--set", setting)))
    deadline = time.monotonic() + 280
    while not (run.root / "training" / "sft_control").is_dir():
        assert first.poll() is None, run.errors()
        assert time.monotonic() < deadline, run.errors()
        time.sleep(0.1)
    kill(first)
    trained_s = json.loads((run.root / "seconds.json").read_text())["sft_control"]
    process = run.start("--resume", str(run.root))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, run.errors()
    summary = json.loads(output.splitlines()[-1])
    for phase in ("warm", "plateau", "rl", "sft_control"):
        assert summary[phase]["episodes"] == 8
        assert summary["greedy"][phase]["episodes"] == 4
        assert summary["pass_at_2"][phase]["value"] >= summary[phase]["solved"]
    for control in ("plateau", "sft_control"):
        over = summary[f"gain_over_{control}"]
        assert over["value"] == summary["rl"]["solved"] - summary[control]["solved"]
    spent = summary["seconds_by_phase"]
    assert spent["sft_control"] == trained_s == pytest.approx(spent["reinforcement"], abs=10)
    attempts = attempts_made(run)
    assert len(attempts) == len(set(attempts))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_again_and_again_at_any_moment_it_loses_and_doubles_nothing(
    tmp_path: Path, small_tasks: list[Task]
) -> None:
    run = Run(tmp_path, Path(small_tasks[0].directory).parent)
    sets = [part for setting in run.settings for part in ("--set", setting)]
    moments = random.Random(7)
    arguments = sets
    for _ in range(12):
        process = run.start(*arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(4, 45))
        kill(process)
        if (run.root / "config.json").is_file():
            arguments = ["--resume", str(run.root)]
    last = run.start(*arguments)
    last.communicate(timeout=900)
    assert last.returncode == 0, run.errors()
    ledger = Ledger(Store(run.url), "quickstart")
    assert set(run.states()) <= {State.APPLIED, State.DROPPED}
    prompts = ledger.leased_prompts(0)
    assert len(prompts) == len(set(prompts))
    assert ledger.audit(0, prompts).whole
