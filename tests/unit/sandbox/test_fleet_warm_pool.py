"""Warm pools: as many as will be asked for, bounded, each given away once."""

from hypothesis import given
from hypothesis import strategies as st

from journeyman.sandbox.fleet.demand import Demand
from journeyman.sandbox.fleet.warm_pool import Warm, WarmPools, WarmSettings


def demand_of(counts: list[int], memory: float = 0.9) -> Demand:
    """So many asked in each window of a second."""
    demand = Demand(1.0, memory, 0.0)
    for second, count in enumerate(counts):
        if count:
            demand.ask(second + 0.5, count)
    return demand


def test_steady_demand_is_its_own_target() -> None:
    assert demand_of([5] * 300).target(300.0, 2.0) == 5


def test_bursts_ask_for_more_than_their_mean() -> None:
    """Ten at once every tenth second are one a second on average, and one ready would not do."""
    bursts = demand_of(([10] + [0] * 9) * 60, memory=0.98)
    assert 4 <= bursts.target(600.0, 2.0) <= 10
    assert bursts.target(600.0, 0.0) == 1


def test_demand_that_is_over_wants_nothing() -> None:
    demand = demand_of([20] * 100)
    assert demand.target(100.0, 2.0) >= 20
    assert demand.target(300.0, 2.0) == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 40))
def test_silence_in_one_piece_is_silence_in_many(counts: list[int], silence: int) -> None:
    """The estimate does not depend on how often anybody looks."""
    at_once, often = demand_of(counts), demand_of(counts)
    for second in range(len(counts), len(counts) + silence):
        often.target(float(second), 2.0)
    end = float(len(counts) + silence)
    assert at_once.target(end, 2.0) == often.target(end, 2.0)
    assert abs(at_once.total - often.total) < 1e-9


def pools(**settings: float) -> WarmPools:
    return WarmPools(WarmSettings(refill_s=1.0, memory=0.9, **settings))  # type: ignore[arg-type]


def ask(made: WarmPools, template: str, each_s: int, until_s: int) -> None:
    for second in range(until_s):
        for _ in range(each_s):
            made.take(template, second + 0.5)


def test_what_is_given_away_does_not_come_back() -> None:
    made = pools()
    made.put("t", Warm("w1", "a"))
    made.put("t", Warm("w2", "b"))
    assert [made.take("t", 0.0) for _ in range(3)] == [Warm("w1", "a"), Warm("w2", "b"), None]


def test_the_plan_starts_what_is_missing_and_counts_what_is_on_its_way() -> None:
    made = pools()
    ask(made, "t", 4, 100)
    assert made.plan(100.0, {}).start == {"t": 4}
    assert made.plan(100.0, {"t": 3}).start == {"t": 1}
    for number in range(4):
        made.put("t", Warm(f"w{number}", "a"))
    assert made.plan(100.0, {}).start == {}


def test_the_plan_closes_what_nobody_will_ask_for() -> None:
    made = pools()
    ask(made, "t", 2, 100)
    for number in range(5):
        made.put("t", Warm(f"w{number}", "a"))
    assert made.plan(100.0, {}).close == ("w2", "w3", "w4")
    assert set(made.plan(1000.0, {}).close) == {"w0", "w1"}
    assert made.ready("t") == 0


def test_a_node_that_goes_takes_its_warm_sandboxes_off_the_shelf() -> None:
    made = pools()
    for number in range(4):
        made.put("t", Warm(f"w{number}", "ab"[number % 2]))
    assert [warm.sandbox for warm in made.withdraw("a")] == ["w0", "w2"]
    assert [made.take("t", 0.0) for _ in range(3)] == [Warm("w1", "b"), Warm("w3", "b"), None]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 60), max_size=8))
def test_targets_stay_within_both_bounds_and_are_shared_fairly(rates: dict[str, int]) -> None:
    made = pools(most_per_template=20, most=50)
    for template, rate in rates.items():
        ask(made, template, rate, 40)
    targets = made.targets(40.0)
    wanted = {name: min(20, rate) for name, rate in rates.items() if rate}
    assert sum(targets.values()) <= 50
    assert all(number <= wanted[name] + 1 for name, number in targets.items())
    if sum(wanted.values()) > 50:
        assert sum(targets.values()) == 50
        for name, number in wanted.items():
            assert abs(targets.get(name, 0) - number * 50 / sum(wanted.values())) < 1.5
