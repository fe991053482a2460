"""How many hosts: grows at once, shrinks slowly, never past the bounds, never what is not ours."""

from typing import Any

import pytest
from fleet_values import node, request, scheduler

from journeyman.sandbox.fleet.autoscale import Autoscaler, ScaleDecision, ScaleSettings
from journeyman.sandbox.fleet.provider import Host, HostShortage, StaticHosts
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.types.failure import UserError

NOTHING = ScaleDecision()


def host(name: str, age_s: float = 1e6, state: Any = "running") -> Host:
    return Host(id=name, state=state, age_s=age_s)


def fleet_of(names: str, gib_each: int = 0) -> Scheduler:
    """Nodes of 64 GiB, each with a sandbox of so much memory."""
    made = scheduler(*(node(name) for name in names))
    for name in names if gib_each else "":
        sandbox = request(f"on-{name}", memory=gib_each)
        made.fleet.reserve(sandbox, made.fleet.node(name), 0.0)
    return made


def scaler(**settings: Any) -> Autoscaler:
    return Autoscaler(ScaleSettings(**{"least": 1, "most": 10, **settings}))


def decide(made: Autoscaler, fleet: Scheduler, now: float = 0.0, **more: Any) -> ScaleDecision:
    hosts = more.get("hosts", [host(name) for name in fleet.fleet.nodes])
    return made.decide(fleet.fleet, hosts, more.get("refused", ()), now)


def test_an_empty_fleet_grows_to_its_least() -> None:
    assert decide(scaler(least=3), fleet_of("")) == ScaleDecision(start=3)


def test_a_full_fleet_grows_until_it_would_be_full_enough() -> None:
    """Four nodes at 60/64 are 5 at the target of three quarters."""
    assert decide(scaler(), fleet_of("abcd", gib_each=60)) == ScaleDecision(start=1)


def test_it_never_grows_past_its_most() -> None:
    full = fleet_of("abcd", gib_each=64)
    assert decide(scaler(most=5), full) == ScaleDecision(start=1)
    assert decide(scaler(most=4), full) == NOTHING


def test_hosts_on_their_way_are_counted() -> None:
    full = fleet_of("abcd", gib_each=60)
    hosts = [*map(host, "abcd"), host("new", age_s=5, state="starting")]
    assert decide(scaler(), full, hosts=hosts) == NOTHING


def test_refused_requests_bring_as_many_nodes_as_would_hold_them() -> None:
    refused = [request(f"r{i}", memory=32) for i in range(5)]
    assert decide(scaler(), fleet_of("a"), refused=refused) == ScaleDecision(start=3)
    assert decide(scaler(least=0), fleet_of(""), refused=refused) == ScaleDecision(start=1)


@pytest.mark.parametrize("asked", [{"memory": 65}, {"cpus": 1000}, {"driver": "qemu"}])
def test_what_no_host_could_hold_starts_none(asked: dict[str, Any]) -> None:
    refused = [request("r", **asked)]
    assert decide(scaler(), fleet_of("a"), refused=refused) == NOTHING


def test_it_shrinks_by_one_node_after_a_long_calm() -> None:
    made, calm = scaler(calm_s=600), fleet_of("abc", gib_each=8)
    calm.fleet.release("on-b", 0.0)
    assert decide(made, calm, 0.0) == NOTHING
    assert decide(made, calm, 599.0) == NOTHING
    assert decide(made, calm, 600.0) == ScaleDecision(drain="b")
    calm.fleet.set_state("b", "draining", 600.0)
    # While one drains, no other does; empty, its host is ended.
    decision = decide(made, calm, 5000.0)
    assert decision == ScaleDecision(terminate=("b",))


def test_a_short_rush_starts_the_calm_anew() -> None:
    made, fleet = scaler(calm_s=600), fleet_of("abc", gib_each=8)
    assert decide(made, fleet, 0.0) == NOTHING
    fleet.fleet.reserve(request("rush", memory=50), fleet.fleet.node("a"), 300.0)
    fleet.fleet.reserve(request("rush2", memory=30), fleet.fleet.node("b"), 300.0)
    assert decide(made, fleet, 300.0) == NOTHING
    fleet.fleet.release("rush", 310.0)
    fleet.fleet.release("rush2", 310.0)
    assert decide(made, fleet, 310.0) == NOTHING
    assert decide(made, fleet, 700.0) == NOTHING
    assert decide(made, fleet, 910.0).drain != ""


def test_it_does_not_shrink_below_its_least_nor_where_it_would_grow_back() -> None:
    made = scaler(least=3, calm_s=0)
    assert decide(made, fleet_of("abc"), 1e6) == NOTHING
    busy = scaler(calm_s=0)
    assert decide(busy, fleet_of("ab", gib_each=20), 1e6) == NOTHING


def test_nodes_that_are_not_the_providers_are_neither_drained_nor_ended() -> None:
    made, fleet = scaler(calm_s=0), fleet_of("abc")
    assert decide(made, fleet, 0.0, hosts=[]) == NOTHING
    fleet.fleet.set_state("a", "draining", 0.0)
    assert decide(made, fleet, 1.0, hosts=[]) == NOTHING


def test_a_host_with_sandboxes_is_not_ended() -> None:
    fleet = fleet_of("ab", gib_each=30)
    fleet.fleet.set_state("a", "draining", 0.0)
    assert decide(scaler(), fleet).terminate == ()
    fleet.fleet.set_state("a", "lost", 0.0)
    assert decide(scaler(), fleet).terminate == ()
    fleet.fleet.release("on-a", 1.0)
    assert decide(scaler(), fleet).terminate == ("a",)


def test_a_host_that_never_registers_is_replaced() -> None:
    made = scaler(least=2, boot_s=900)
    young, old = host("new", age_s=899, state="running"), host("new", age_s=901)
    assert decide(made, fleet_of("a"), hosts=[host("a"), young]) == NOTHING
    assert decide(made, fleet_of("a"), hosts=[host("a"), old]) == ScaleDecision(
        start=1, terminate=("new",)
    )


@pytest.mark.parametrize("wrong", [{"least": 3, "most": 2}, {"low": 0.8, "high": 0.7}])
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is more than most|must be below high"):
        ScaleSettings(**{"most": 5, **wrong})


def test_a_fixed_list_starts_and_ends_nothing() -> None:
    hosts = StaticHosts({"a": "http://a:8085"})
    assert [(each.id, each.address) for each in hosts.hosts()] == [("a", "http://a:8085")]
    with pytest.raises(HostShortage, match="list of hosts is fixed"):
        hosts.start(1)
    with pytest.raises(UserError, match="not this fleet's to end"):
        hosts.terminate("a")
