"""Weighted choice: exactly in proportion, whatever was changed before."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from journeyman.sandbox.fleet.pool import WeightedPool


class Points(Random):
    """Gives each of the points 0/total … (total-1)/total once, moved to the middle."""

    def __init__(self, total: int) -> None:
        super().__init__(0)
        self._points = iter((number + 0.5) / total for number in range(total))

    def random(self) -> float:
        return next(self._points)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=60))
def test_each_member_is_chosen_as_often_as_its_weight_says(changes: list[tuple[int, int]]) -> None:
    pool, weights = WeightedPool(), Counter[int]()
    for member, weight in changes:
        pool.set(member, weight)
        weights[member] = weight
    assert pool.total == weights.total()
    points = Points(pool.total) if pool.total else None
    chosen = Counter(pool.choose(points) for _ in range(pool.total)) if points else Counter[int]()
    assert chosen == +weights
    assert all(pool.weight(member) == weight for member, weight in weights.items())


def test_a_member_that_was_never_set_has_no_weight() -> None:
    assert WeightedPool().weight(1000) == 0
