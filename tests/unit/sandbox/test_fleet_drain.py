"""Draining a node, and losing one: every sandbox is accounted for."""

import pytest
from fleet_values import node, request, scheduler

from journeyman.sandbox.fleet.drain import plan_drain, plan_loss
from journeyman.types.failure import SandboxError


def test_everything_is_moved_off_a_draining_node() -> None:
    made = scheduler(node("a"))
    requests = {f"s{i}": request(f"s{i}") for i in range(10)}
    for each in requests.values():
        made.place(each, 0.0)
    made.fleet.rest("s3", 0.5)
    made.fleet.put_node(node("b"), 1.0)
    made.fleet.put_node(node("c"), 1.0)
    plan = plan_drain(made, "a", requests, 1.0)
    assert sorted(move.sandbox for move in plan.moves) == sorted(requests)
    assert {(move.start, move.copy_from) for move in plan.moves} == {("copy", "a")}
    assert {move.node for move in plan.moves} == {"b", "c"}
    assert plan.stuck == ()
    made.fleet.remove_node("a")


def test_what_fits_nowhere_stays_and_says_why() -> None:
    made = scheduler(node("a", memory=16))
    requests = {"big": request("big", memory=10), "small": request("small", memory=1)}
    for each in requests.values():
        made.place(each, 0.0)
    made.fleet.put_node(node("b", memory=8), 1.0)
    plan = plan_drain(made, "a", requests, 1.0)
    assert [move.sandbox for move in plan.moves] == ["small"]
    assert [each.sandbox for each in plan.stuck] == ["big"]
    assert "short of memory" in plan.stuck[0].reason
    assert made.fleet.node("a").sandboxes.keys() == {"big"}
    assert made.fleet.node("a").node.state == "draining"


def test_the_biggest_are_placed_first() -> None:
    """Small ones first would leave no node with room for the big one."""
    made = scheduler(node("a", memory=12))
    requests = {f"s{i}": request(f"s{i}", memory=1) for i in range(4)}
    requests["z-big"] = request("z-big", memory=8)
    for each in requests.values():
        made.place(each, 0.0)
    made.fleet.put_node(node("b", memory=8), 1.0)
    made.fleet.put_node(node("c", memory=4), 1.0)
    plan = plan_drain(made, "a", requests, 1.0)
    assert plan.stuck == ()
    assert {move.node for move in plan.moves if move.sandbox == "z-big"} == {"b"}


def test_a_lost_node_leaves_no_sandbox_unaccounted_and_none_fresh() -> None:
    made = scheduler(node("a", snapshots={"t-1", "only-here"}))
    requests = {name: request(name, memory=4) for name in ("saved", "late", "none", "lonely")}
    for each in requests.values():
        made.place(each, 0.0)
    # Others have the template: a sandbox that started from it would seem to be the lost one.
    made.fleet.put_node(node("b", memory=4, snapshots={"t-1", "s-saved", "s-late"}), 0.0)
    snapshots = {"saved": "s-saved", "late": "s-late", "lonely": "only-here"}
    plan = plan_loss(made, "a", requests, snapshots, 10.0)
    assert [(each.sandbox, each.node, each.start) for each in plan.resumed] == [
        ("late", "b", "local")
    ]
    assert [each.sandbox for each in plan.waiting] == ["saved"]
    assert "short of memory" in plan.waiting[0].reason
    assert {each.sandbox: each.reason for each in plan.lost} == {
        "none": "node a was lost, and no snapshot of it is left: it had none",
        "lonely": "node a was lost, and no snapshot of it is left: only-here, the last, was there "
        "only",
    }
    assert made.fleet.node("a").sandboxes == {}


@pytest.mark.parametrize("plan", ["drain", "loss"])
def test_a_sandbox_of_which_nothing_is_known_is_not_passed_over(plan: str) -> None:
    made = scheduler(node("a"), node("b"))
    made.place(request("s"), 0.0)
    home = made.fleet.reservation("s").load.node.id  # type: ignore[union-attr]
    with pytest.raises(SandboxError, match="what 1 sandboxes of node"):
        if plan == "drain":
            plan_drain(made, home, {}, 1.0)
        else:
            plan_loss(made, home, {}, {}, 1.0)
    assert made.fleet.node(home).node.state == "ready"


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(SandboxError, match="no node 'x'"):
        plan_drain(scheduler(node("a")), "x", {}, 0.0)
