"""The order of prompts and the choice of tasks."""

from collections import Counter
from collections.abc import Collection

import pytest

from journeyman.controller.prompts import Prompt, PromptOrder
from journeyman.controller.selection import check_splits, select, select_train
from journeyman.store import PastPrompt
from journeyman.types import Provenance, Split, Task, UserError


def task(name: str, split: Split = "train", project: str = "p") -> Task:
    origin = Provenance(
        project=project, version="1", path="a.py", function="f", mutation="m", seed=0
    )
    return Task(
        id=name, instruction="fix", directory="/t", split=split, digest=name, provenance=origin
    )


TASKS = [task(f"t{i}") for i in range(7)]


def past_of(
    prompts: list[Prompt], *, differ: Collection[str] = (), ended: bool = True
) -> list[PastPrompt]:
    """The ledger after these prompts: the verifier had two answers for those in `differ`."""
    return [
        PastPrompt(epoch=p.epoch, prompt=p.task.id, ended=ended, both_outcomes=p.task.id in differ)
        for p in prompts
    ]


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.task.id for prompt in prompts]


def test_each_epoch_uses_every_task_once_in_an_order_of_its_own() -> None:
    order = PromptOrder(TASKS, seed=1)
    first = order.take(7, [])
    second = order.take(7, past_of(first))
    assert Counter(ids(first)) == Counter(ids(second)) == Counter(t.id for t in TASKS)
    assert ids(first) != ids(second)
    assert {p.epoch for p in first} == {0}
    assert {p.epoch for p in second} == {1}
    assert order.take(14, []) == first + second


def test_the_order_depends_on_the_seed_and_not_on_how_tasks_were_listed() -> None:
    taken = PromptOrder(TASKS, seed=1).take(9, [])
    assert PromptOrder(TASKS[::-1], seed=1).take(9, []) == taken
    assert PromptOrder(TASKS, seed=2).take(9, []) != taken


def test_settled_tasks_are_left_out_of_later_epochs_until_too_few_would_be_left() -> None:
    order = PromptOrder(TASKS, seed=1, skip_settled=True, fewest=2)
    past = past_of(order.take(7, []), differ={"t1", "t4", "t5"})
    second = order.take(3, past)
    assert set(ids(second)) == {"t1", "t4", "t5"} and {p.epoch for p in second} == {1}
    past += past_of(second, differ={"t1", "t4"})
    third = order.take(2, past)
    assert set(ids(third)) == {"t1", "t4"} and {p.epoch for p in third} == {2}
    past += past_of(third, differ={"t1"})
    assert Counter(ids(order.take(7, past))) == Counter(t.id for t in TASKS)


def test_a_task_whose_verdicts_are_not_in_yet_is_not_settled() -> None:
    order = PromptOrder(TASKS, seed=1, skip_settled=True, fewest=2)
    first = order.take(7, [])
    past = past_of(first[:5]) + past_of(first[5:], ended=False)
    assert set(ids(order.take(2, past))) == set(ids(first[5:]))
    assert ids(order.take(9, past_of(first[:5])))[:2] == ids(first[5:])


@pytest.mark.parametrize("cuts", [(3, 3, 3, 3), (1, 4, 7), (12,), (5, 2, 5)])
def test_how_many_are_taken_at_a_time_does_not_change_the_order(cuts: tuple[int, ...]) -> None:
    order = PromptOrder(TASKS, seed=3)
    taken: list[Prompt] = []
    for count in cuts:
        taken += order.take(count, past_of(taken))
    assert taken == order.take(12, [])


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
