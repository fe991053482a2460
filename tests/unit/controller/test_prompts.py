"""The order of prompts and the choice of tasks."""

from collections import Counter

import pytest

from journeyman.controller.prompts import PromptOrder
from journeyman.controller.selection import check_splits, select, select_train
from journeyman.types import Provenance, Split, Task, UserError


def task(name: str, split: Split = "train", project: str = "p") -> Task:
    origin = Provenance(
        project=project, version="1", path="a.py", function="f", mutation="m", seed=0
    )
    return Task(
        id=name, instruction="fix", directory="/t", split=split, digest=name, provenance=origin
    )


TASKS = [task(f"t{i}") for i in range(7)]


def test_each_epoch_uses_every_task_once_in_an_order_of_its_own() -> None:
    order = PromptOrder(TASKS, seed=1)
    first, second = order.take(0, 7), order.take(7, 7)
    assert Counter(p.task.id for p in first) == Counter(t.id for t in TASKS)
    assert Counter(p.task.id for p in second) == Counter(t.id for t in TASKS)
    assert [p.task.id for p in first] != [p.task.id for p in second]
    assert {p.epoch for p in first} == {0}
    assert {p.epoch for p in second} == {1}


def test_the_order_depends_on_the_seed_and_not_on_how_tasks_were_listed() -> None:
    taken = PromptOrder(TASKS, seed=1).take(3, 9)
    assert PromptOrder(TASKS[::-1], seed=1).take(3, 9) == taken
    assert PromptOrder(TASKS, seed=2).take(3, 9) != taken


def test_selection_spreads_over_projects_and_is_stable() -> None:
    tasks = [task(f"a{i}", "held_out", "a") for i in range(50)]
    tasks += [task(f"b{i}", "held_out", "b") for i in range(5)]
    chosen = select(tasks, "held_out", 10, seed=0)
    assert Counter(t.provenance.project for t in chosen if t.provenance) == {"a": 5, "b": 5}
    assert select(tasks[::-1], "held_out", 10, seed=0) == chosen
    assert select(tasks, "held_out", 10, seed=1) != chosen


def test_too_few_tasks_are_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match="has 7 train tasks, the run asks for 8"):
        select(TASKS, "train", 8, seed=0)


def test_a_project_in_both_training_and_held_out_is_refused_by_name() -> None:
    check_splits([task("a"), task("b", "held_out", "q")])
    with pytest.raises(UserError, match="projects p are in both"):
        check_splits([task("a"), task("b", "held_out", "p")])


def test_reinforcement_takes_training_tasks_first_and_no_task_that_is_replayed() -> None:
    tasks = [task(f"w{n}", "warm") for n in range(6)] + [task(f"t{n}", "train") for n in range(3)]
    warm = {t.id for t in select(tasks, "warm", 2, seed=0)}
    assert {t.id for t in select_train(tasks, 3, 0, warm=2)} == {"t0", "t1", "t2"}
    more = [t.id for t in select_train(tasks, 7, 0, warm=2)]
    assert len(set(more)) == 7
    assert not warm & set(more)
    with pytest.raises(UserError, match="7 train tasks, the run asks for 8"):
        select_train(tasks, 8, 0, warm=2)
