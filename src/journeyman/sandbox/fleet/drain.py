"""Emptying a node that still answers, and settling what a lost one leaves."""

from collections.abc import Mapping

from journeyman.sandbox.fleet.placement import NoCapacity, Placement, PlacementRequest
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value


class Unplaced(Value):
    """A sandbox for which there is no other place, and why."""

    sandbox: str
    reason: str


class DrainPlan(Value):
    """`moves` are reserved already: carry them out, or release them. What is `stuck` runs on
    where it is; plan again when there is room."""

    node: str
    moves: tuple[Placement, ...]
    stuck: tuple[Unplaced, ...]


class LossPlan(Value):
    """What becomes of a lost node's sandboxes. Each is in one of the three, none starts fresh."""

    node: str
    resumed: tuple[Placement, ...]
    """They continue from their last snapshot, as a new generation."""
    waiting: tuple[Unplaced, ...]
    """Their snapshots are safe, but no node has room for them now: place them later."""
    lost: tuple[Unplaced, ...]


def plan_drain(
    scheduler: Scheduler, node_id: str, requests: Mapping[str, PlacementRequest], now: float
) -> DrainPlan:
    """Let a node take no more sandboxes, and find another place for each it has.

    `requests` says what each sandbox asked for; the biggest are placed first, while there is most
    room. Raises SandboxError for an unknown node.
    """
    sandboxes = _biggest_first(scheduler, node_id, requests)
    scheduler.fleet.set_state(node_id, "draining", now)
    moves, stuck = [], []
    for sandbox in sandboxes:
        try:
            moves.append(scheduler.place(requests[sandbox], now))
        except NoCapacity as error:
            stuck.append(Unplaced(sandbox=sandbox, reason=error.cause))
    return DrainPlan(node=node_id, moves=tuple(moves), stuck=tuple(stuck))


def plan_loss(
    scheduler: Scheduler,
    node_id: str,
    requests: Mapping[str, PlacementRequest],
    snapshots: Mapping[str, str],
    now: float,
) -> LossPlan:
    """Find a place for each sandbox of a node that is gone, where a snapshot of it is left.

    `snapshots` names the last snapshot of each sandbox that has one. One that only the lost node
    had is no help, and neither is the template: a sandbox that forgot everything would pass for
    the one that was lost.
    """
    sandboxes = _biggest_first(scheduler, node_id, requests)
    scheduler.fleet.set_state(node_id, "lost", now)
    resumed, waiting, lost = [], [], []
    for sandbox in sandboxes:
        snapshot = snapshots.get(sandbox)
        if snapshot is None or not scheduler.fleet.is_held(snapshot):
            scheduler.fleet.release(sandbox, now)
            why = f"{snapshot}, the last, was there only" if snapshot else "it had none"
            reason = f"node {node_id} was lost, and no snapshot of it is left: {why}"
            lost.append(Unplaced(sandbox=sandbox, reason=reason))
            continue
        try:
            request = requests[sandbox].model_copy(update={"snapshot": snapshot})
            resumed.append(scheduler.place(request, now))
        except NoCapacity as error:
            scheduler.fleet.release(sandbox, now)
            waiting.append(Unplaced(sandbox=sandbox, reason=error.cause))
    return LossPlan(node=node_id, resumed=tuple(resumed), waiting=tuple(waiting), lost=tuple(lost))


def _biggest_first(
    scheduler: Scheduler, node_id: str, requests: Mapping[str, PlacementRequest]
) -> list[str]:
    there = scheduler.fleet.node(node_id).sandboxes
    if unknown := sorted(there.keys() - requests.keys()):
        raise SandboxError(
            f"what {len(unknown)} sandboxes of node {node_id} asked for is not known, for "
            f"instance {unknown[0]}'s",
            "Give the requests of all of them.",
        )
    return sorted(there, key=lambda name: (-requests[name].memory_bytes, name))
