"""The scheduler: where sandboxes go, and why not elsewhere."""

import pickle
from collections import Counter
from typing import Any

import pytest
from fleet_values import GIB, node, report, request, scheduler

from journeyman.sandbox.fleet.placement import NoCapacity, Placement, Spread
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.types.failure import SandboxError, UserError


def at(placement: Placement) -> tuple[str, str, str]:
    return placement.node, placement.start, placement.copy_from


# ---- pressure


def test_the_less_loaded_node_gets_the_sandbox() -> None:
    made = scheduler(node("a"), node("b"))
    made.fleet.report(report("a", at=1.0, cpus=20), now=1.0)
    made.fleet.report(report("b", at=1.0, cpus=4), now=1.0)
    assert {made.place(request(f"s{i}"), 1.0).node for i in range(4)} == {"b"}


@pytest.mark.parametrize("hot", [{"cpus": 30}, {"memory": 60}, {"disk_used_bytes": 480 * GIB}])
def test_the_fullest_resource_counts(hot: dict[str, Any]) -> None:
    made = scheduler(node("a"), node("b"))
    made.fleet.report(report("a", at=1.0, **hot), now=1.0)
    made.fleet.report(report("b", at=1.0, cpus=10, memory=20), now=1.0)
    assert made.place(request("s"), 1.0).node == "b"


def test_a_report_from_before_a_placement_does_not_hide_it() -> None:
    """The node measured, then got twenty sandboxes, then its report arrived."""
    made = scheduler(node("a"), now=0.0)
    for i in range(20):
        made.place(request(f"s{i}"), 1.0)
    made.fleet.put_node(node("b"), 1.0)
    made.fleet.report(report("a", at=0.9), now=1.1)
    made.fleet.report(report("b", at=0.9, cpus=3), now=1.1)
    assert made.place(request("next"), 1.1).node == "b"


def test_what_shows_in_a_report_is_not_counted_twice() -> None:
    made = scheduler(node("a"), now=0.0)
    for i in range(20):
        made.place(request(f"s{i}"), 0.0)
        made.fleet.started(f"s{i}", 0.5)
    made.fleet.report(report("a", at=10.0, cpus=2), now=10.0)
    assert made.fleet.node("a").share(10.0, made.fleet.use) == pytest.approx(2 / 32)


def test_a_late_report_does_not_replace_a_newer_one() -> None:
    made = scheduler(node("a"))
    assert made.fleet.report(report("a", at=2.0, cpus=30), now=2.0)
    assert not made.fleet.report(report("a", at=1.0, cpus=0), now=2.1)
    assert made.fleet.node("a").share(2.0, 0.25) == pytest.approx(30 / 32)


def test_a_report_of_a_node_that_never_registered_changes_nothing() -> None:
    made = scheduler(node("a"))
    assert not made.fleet.report(report("stranger", at=1.0), now=1.0)
    assert list(made.fleet.nodes) == ["a"]


def test_good_news_loses_its_worth_with_age() -> None:
    made = scheduler(node("silent"), node("talks"))
    made.fleet.report(report("silent", at=0.0, cpus=0), now=0.0)
    made.fleet.report(report("talks", at=60.0, cpus=3), now=60.0)
    assert made.place(request("s"), 60.0).node == "talks"


def test_bad_news_loses_its_worth_with_age_too() -> None:
    made = scheduler(node("a"))
    made.fleet.report(report("a", at=0.0, cpus=32), now=0.0)
    fresh, old = (made.fleet.node("a").share(now, 0.25) for now in (0.0, 120.0))
    assert fresh == pytest.approx(1.0)
    assert old == pytest.approx(SchedulerSettings().stale_penalty, abs=0.01)


# ---- starts


def test_a_burst_does_not_pile_up_on_one_node() -> None:
    """512 sandboxes at one instant, no report in between: none of 64 equal nodes starts more
    than twice its part."""
    made = scheduler(*(node(f"n{i}", snapshots={"t-1"}) for i in range(64)))
    for each in list(made.fleet.nodes):
        made.fleet.report(report(each, at=0.0), now=0.0)
    placed = Counter(made.place(request(f"s{i}"), 0.0).node for i in range(512))
    assert max(placed.values()) <= 2 * 512 / 64


def test_starts_cost_until_they_are_done() -> None:
    made = scheduler(node("a", snapshots={"t-1"}), now=0.0)
    for i in range(8):
        made.place(request(f"s{i}"), 0.0)
    load = made.fleet.node("a")
    assert load.starts_in_flight(0.0) == pytest.approx(8)
    for i in range(6):
        made.fleet.started(f"s{i}", 0.5)
    assert load.starts_in_flight(0.5) == pytest.approx(2 * 2.718281828**-0.5)
    made.fleet.started("s0", 0.6)  # told twice
    made.fleet.release("s6", 0.6)  # ended before it had started
    assert load.starts_in_flight(0.6) == pytest.approx(2.718281828**-0.6)


def test_a_start_that_nobody_reports_as_done_is_forgiven() -> None:
    made = scheduler(node("a", snapshots={"t-1"}))
    made.place(request("s"), 0.0)
    assert made.fleet.node("a").starts_in_flight(20.0) < 1e-6


def test_what_waits_for_a_copy_starts_when_it_arrives() -> None:
    """The cost of its start does not decay before, however long the copy takes."""
    made = scheduler(node("a"), now=0.0)
    for i in range(3):
        assert made.place(request(f"s{i}"), 0.0).start == "build"
    made.fleet.release("s2", 5.0)
    load = made.fleet.node("a")
    assert load.starts_in_flight(20.0) == 2
    made.fleet.snapshot_arrived("t-1", "a", 20.0)
    assert load.starts_in_flight(20.0) == pytest.approx(2)
    made.fleet.started("s0", 20.0)
    assert load.starts_in_flight(21.0) == pytest.approx(2.718281828**-1)


def test_starts_that_a_node_reports_count_though_others_ordered_them() -> None:
    made = scheduler(node("a"), node("b"))
    made.fleet.report(report("a", at=1.0, starts=16), now=1.0)
    made.fleet.report(report("b", at=1.0, cpus=8), now=1.0)
    assert made.place(request("s"), 1.0).node == "b"


# ---- snapshots


def test_the_node_with_the_snapshot_is_preferred_while_it_is_not_hot() -> None:
    made = scheduler(node("has", snapshots={"t-1"}), *(node(f"n{i}") for i in range(200)))
    made.fleet.report(report("has", at=0.0, cpus=2), now=0.0)
    for i in range(200):
        made.fleet.report(report(f"n{i}", at=0.0), now=0.0)
    assert at(made.place(request("s"), 0.0)) == ("has", "local", "")


@pytest.mark.parametrize("others", [0, 18], ids=["others idle", "hot though others are busy"])
def test_from_a_hot_node_the_snapshot_is_copied(others: float) -> None:
    made = scheduler(node("has", snapshots={"t-1"}), node("b"))
    made.fleet.report(report("has", at=0.0, cpus=27), now=0.0)
    made.fleet.report(report("b", at=0.0, cpus=others), now=0.0)
    assert at(made.place(request("s"), 0.0)) == ("b", "copy", "has")


def test_the_source_of_a_copy_may_drain_but_is_not_lost() -> None:
    made = scheduler(node("drains", snapshots={"t-1"}), node("b"), now=0.0)
    made.fleet.set_state("drains", "draining", 0.0)
    assert at(made.place(request("s"), 0.0)) == ("b", "copy", "drains")
    made.fleet.snapshot_failed("t-1", "b")
    made.fleet.set_state("drains", "lost", 0.0)
    assert at(made.place(request("s2"), 0.0)) == ("b", "build", "")
    made.fleet.snapshot_failed("t-1", "b")
    made.fleet.set_state("drains", "draining", 0.0)  # found again
    assert at(made.place(request("s3"), 0.0)) == ("b", "copy", "drains")


def test_while_a_copy_is_on_its_way_sandboxes_follow_it() -> None:
    """One copy serves a burst; after its arrival nothing needs to be copied."""
    made = scheduler(node("has", snapshots={"t-1"}), *(node(f"n{i}") for i in range(50)))
    made.fleet.report(report("has", at=0.0, cpus=32), now=0.0)
    first = made.place(request("s0"), 0.0)
    second = made.place(request("s1"), 0.0)
    assert (first.start, second) == ("copy", second.model_copy(update={"node": first.node}))
    assert second.start == "copy"
    made.fleet.snapshot_arrived("t-1", first.node, 0.0)
    assert at(made.place(request("s2"), 0.0)) == (first.node, "local", "")


# ---- hibernated sandboxes


def test_a_hibernated_sandbox_wakes_at_home_or_moves_from_there() -> None:
    made = scheduler(node("a"), node("b"), now=0.0)
    home = made.place(request("s"), 0.0).node
    made.fleet.rest("s", 1.0)
    assert at(made.place(request("s"), 2.0)) == (home, "local", "")
    made.fleet.rest("s", 3.0)
    made.fleet.report(report(home, at=4.0, cpus=31), now=4.0)
    moved = made.place(request("s"), 4.0)
    assert (moved.node != home, moved.start, moved.copy_from) == (True, "copy", home)
    assert made.fleet.node(home).sandboxes == {}


def test_a_resting_sandbox_holds_its_disk_and_nothing_else() -> None:
    made = scheduler(node("a", cpus=1, memory=8, disk=10))
    made.place(request("s", cpus=4, memory=8, disk=6), 0.0)
    made.fleet.rest("s", 1.0)
    made.place(request("other", cpus=4, memory=8, disk=4), 2.0)
    with pytest.raises(NoCapacity, match="cpus and memory"):
        made.place(request("s", cpus=4, memory=8, disk=6), 3.0)
    made.fleet.release("other", 4.0)
    # Its own disk is not in its way, and the failed attempt has changed nothing.
    assert made.place(request("s", cpus=4, memory=8, disk=6), 5.0).node == "a"


def test_a_running_sandbox_is_not_placed_twice() -> None:
    made = scheduler(node("a"), node("b"))
    made.place(request("s"), 0.0)
    with pytest.raises(SandboxError, match="placed on node . already"):
        made.place(request("s"), 0.0)


# ---- what keeps a sandbox out


@pytest.mark.parametrize("state", ["draining", "lost"])
def test_only_ready_nodes_get_sandboxes(state: Any) -> None:
    made = scheduler(node("a"), node("b"))
    made.fleet.set_state("a", state, 0.0)
    assert {made.place(request(f"s{i}"), 0.0).node for i in range(20)} == {"b"}
    made.fleet.set_state("b", state, 0.0)
    with pytest.raises(NoCapacity, match="none of 2 nodes is ready") as caught:
        made.place(request("s"), 0.0)
    assert caught.value.resource == "nodes"


def test_a_removed_node_gets_none_and_its_place_is_used_again() -> None:
    made = scheduler(node("a"), node("b"))
    made.fleet.remove_node("a")
    made.fleet.put_node(node("c"), 0.0)
    assert {made.place(request(f"s{i}"), 0.0).node for i in range(40)} == {"b", "c"}


def test_a_node_with_sandboxes_is_not_removed() -> None:
    made = scheduler(node("a"))
    made.place(request("s"), 0.0)
    with pytest.raises(UserError, match="still has 1 sandboxes"):
        made.fleet.remove_node("a")


@pytest.mark.parametrize(
    ("asked", "resource", "detail"),
    [
        ({"cpus": 129}, "cpus", "the most cpus that any of 2 nodes has left is 128"),
        ({"memory": 65}, "memory", "the most memory that any of 2 nodes has left is 64 GiB"),
        ({"disk": 501}, "disk", "the most disk that any of 2 nodes has left is 500 GiB"),
        ({"driver": "qemu"}, "driver", "none of 2 ready nodes has that driver"),
        ({"cpus": 200, "memory": 65}, "cpus and memory", "has left is 128; the most memory"),
    ],
)
def test_no_capacity_names_what_is_short(asked: dict[str, Any], resource: str, detail: str) -> None:
    made = scheduler(node("a"), node("b", cpus=8, memory=8, disk=8))
    with pytest.raises(NoCapacity) as caught:
        made.place(request("s", **asked), 0.0)
    assert (caught.value.resource, detail in caught.value.cause) == (resource, True)
    assert caught.value.cure
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.resource, str(again)) == (resource, str(caught.value))


def test_what_alone_keeps_it_out_is_named_before_what_does_together() -> None:
    """Node a lacks memory only, node b memory and disk: more memory is what helps first."""
    made = scheduler(node("a", memory=1), node("b", memory=1, disk=1))
    with pytest.raises(NoCapacity) as caught:
        made.place(request("s", memory=2, disk=2), 0.0)
    assert caught.value.resource == "memory"


def test_spread_is_a_bound_and_tenants_have_keys_of_their_own() -> None:
    made = scheduler(node("a"), node("b"))
    spread = Spread(key="group", most_per_node=2)
    placed = Counter(made.place(request(f"s{i}", spread=spread), 0.0).node for i in range(4))
    assert placed == {"a": 2, "b": 2}
    with pytest.raises(NoCapacity) as caught:
        made.place(request("s4", spread=spread), 0.0)
    assert caught.value.resource == "spread"
    made.place(request("s5", spread=spread, tenant="another"), 0.0)
    made.fleet.release("s0", 0.0)
    made.place(request("s4", spread=spread), 0.0)


def test_memory_that_others_use_is_not_given_away() -> None:
    """What was measured counts though nothing was promised."""
    made = scheduler(node("a"))
    made.fleet.report(report("a", at=0.0, memory=60), now=0.0)
    with pytest.raises(NoCapacity) as caught:
        made.place(request("s", memory=5), 0.0)
    assert caught.value.resource == "memory"


def test_the_last_place_is_found_among_a_thousand_full_nodes() -> None:
    made = scheduler(*(node(f"n{i}", memory=1) for i in range(1000)), node("last", memory=2))
    for i in range(1000):
        made.fleet.reserve(request(f"s{i}"), made.fleet.node(f"n{i}"), 0.0)
    assert [made.place(request(f"l{i}"), 0.0).node for i in range(2)] == ["last", "last"]
    with pytest.raises(NoCapacity):
        made.place(request("more"), 0.0)


# ---- determinism


def test_the_same_calls_and_seed_give_the_same_placements() -> None:
    def placements(seed: int) -> list[Placement]:
        made = scheduler(
            *(node(f"n{i}", cpus=16 * (1 + i % 3), snapshots={f"t-{i % 7}"}) for i in range(60)),
            seed=seed,
        )
        placed = []
        for i in range(300):
            placed.append(made.place(request(f"s{i}", snapshot=f"t-{i % 7}"), i * 0.01))
            made.fleet.report(report(f"n{i % 60}", at=i * 0.01, cpus=i % 9), i * 0.01)
        return placed

    assert placements(1) == placements(1)
    assert placements(1) != placements(2)


# ---- where its state lies, or nowhere


def test_a_request_that_cannot_be_copied_goes_to_a_holder_however_hot() -> None:
    made = scheduler(
        node("hot", snapshots={"s-1"}), node("hotter", snapshots={"s-1"}), node("idle")
    )
    made.fleet.report(report("hot", at=0.0, cpus=30), now=0.0)
    made.fleet.report(report("hotter", at=0.0, cpus=32), now=0.0)
    made.fleet.report(report("idle", at=0.0), now=0.0)
    bound = request("s", snapshot="s-1", at_holder=True)
    assert at(made.place(bound, 0.0)) == ("hot", "local", "")


def test_without_a_holder_the_snapshot_is_what_is_short() -> None:
    made = scheduler(node("a", snapshots={"s-1"}), node("b"))
    made.fleet.set_state("a", "lost", 0.0)
    with pytest.raises(NoCapacity, match="no ready node has s-1") as caught:
        made.place(request("s", snapshot="s-1", at_holder=True), 0.0)
    assert caught.value.resource == "snapshot"


def test_a_fork_goes_where_its_parent_is_or_nowhere() -> None:
    made = scheduler(node("a", memory=2), node("b"))
    assert at(made.place_on(request("s1"), "a", 0.0)) == ("a", "local", "")
    made.place_on(request("s2"), "a", 0.0)
    with pytest.raises(NoCapacity, match="any of 1 nodes has left is 0 GiB") as caught:
        made.place_on(request("s3"), "a", 0.0)
    assert caught.value.resource == "memory"
    assert made.fleet.reservation("s3") is None
