"""The discrete-event simulation of a fleet."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import log
from random import Random
from time import thread_time
from typing import Any, NamedTuple

from journeyman.sandbox.fleet.chooser import PolicyName
from journeyman.sandbox.fleet.drain import plan_drain, plan_loss
from journeyman.sandbox.fleet.node import Pressure
from journeyman.sandbox.fleet.placement import NoCapacity, Placement
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.sandbox.fleet.simulation.machine import Machine, machines
from journeyman.sandbox.fleet.simulation.outcome import Outcome
from journeyman.sandbox.fleet.simulation.workload import Visitor, templates, visitors

WINDOW_S = 600.0
"""All sandboxes arrive within about this time."""
REPORT_EVERY_S = 2.0
REPORT_LOST = 0.05
REPORT_DELAY_MEDIAN_S, REPORT_DELAY_SPREAD = 0.1, 1.2
NOTICED_AFTER_S = 15.0
"""How long nobody hears from a node before it counts as lost."""
NODES_LOST, NODES_DRAINED = 0.005, 0.005
COPY_S, BUILD_S = 4.0, 20.0
SAMPLE_EVERY_S = 5.0
_PROGRESS = 500


class _Life(NamedTuple):
    """A sandbox on a machine. Events that were meant for an earlier stay of it are void."""

    machine: Machine
    visitor: Visitor
    ends_at: float
    placed_at: float


class Simulation:
    """One policy on one workload. The same seed gives the same nodes, sandboxes and failures."""

    def __init__(
        self,
        num_nodes: int,
        num_sandboxes: int,
        policy: PolicyName,
        seed: int,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self.outcome = Outcome(num_nodes, num_sandboxes)
        self._scheduler = Scheduler(settings, seed=seed, policy=policy)
        self._machines = {m.node.id: m for m in machines(num_nodes, templates(), seed)}
        self._visitors = visitors(num_sandboxes, WINDOW_S, seed)
        self._network = Random(f"{seed} network")
        self._failures = Random(f"{seed} failures")
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = count()
        self._now = 0.0
        self._lives: dict[str, _Life] = {}
        self._arriving: dict[tuple[str, str], float] = {}

    def run(self) -> Iterator[int]:
        """Yields the number of sandboxes that have arrived so far, now and then."""
        self._prepare()
        arrived = 0
        for arrived, visitor in enumerate(self._visitors, 1):
            self._run_until(visitor.arrives_at)
            self._arrive(visitor)
            if arrived % _PROGRESS == 0:
                yield arrived
        self._run_until(self._now + 2 * SAMPLE_EVERY_S)
        yield arrived

    # ---- the clock

    def _at(self, time: float, event: Callable[[Any], None], argument: Any = None) -> None:
        heappush(self._events, (time, next(self._order), event, argument))

    def _run_until(self, time: float) -> None:
        events = self._events
        while events and events[0][0] <= time:
            self._now, _, event, argument = heappop(events)
            event(argument)
        self._now = max(self._now, time)

    def _prepare(self) -> None:
        for number, machine in enumerate(self._machines.values()):
            self._scheduler.fleet.put_node(machine.node, 0.0)
            self._at(REPORT_EVERY_S * number / len(self._machines), self._look, machine)
        # The first node stays: it may be the only one with its driver.
        chosen = list(self._machines.values())[1:]
        self._failures.shuffle(chosen)
        num_lost, num_drained = (round(len(chosen) * part) for part in (NODES_LOST, NODES_DRAINED))
        for number, machine in enumerate(chosen[: num_lost + num_drained]):
            event = self._die if number < num_lost else self._drain
            self._at(self._failures.uniform(0.3, 0.9) * WINDOW_S, event, machine)
        self._at(WINDOW_S / 2, self._sample)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the scheduler for a sandbox, and count the time as its own."""
        before = thread_time()
        try:
            return call(*arguments)
        finally:
            self.outcome.placing_s += thread_time() - before

    # ---- sandboxes

    def _arrive(self, visitor: Visitor) -> None:
        self.outcome.placements += 1
        try:
            placement = self._timed(self._scheduler.place, visitor.request, self._now)
        except NoCapacity:
            self.outcome.failed += 1
            return
        self._settle(placement, visitor, self._now + visitor.lifetime_s, visitor.request.snapshot)

    def _settle(self, placement: Placement, visitor: Visitor, ends_at: float, state: str) -> None:
        """It belongs to its node now, and starts once `state`, a snapshot's id, lies there."""
        life = _Life(self._machines[placement.node], visitor, ends_at, self._now)
        self._lives[placement.sandbox] = life
        self.outcome.peak_live = max(self.outcome.peak_live, len(self._lives))
        self._at(ends_at, self._end, life)
        if placement.start == "local":
            self._begin(life)
            return
        key = (state, placement.node)
        if key not in self._arriving:
            takes_s = BUILD_S if placement.start == "build" else COPY_S
            self._arriving[key] = self._now + takes_s
            self._at(self._now + takes_s, self._arrived, key)
            self.outcome.copies += placement.start == "copy"
        self._at(self._arriving[key], self._begin, life)

    def _arrived(self, key: tuple[str, str]) -> None:
        del self._arriving[key]
        snapshot, node = key
        if self._scheduler.fleet.expects_snapshot(snapshot, node):
            self._timed(self._scheduler.fleet.snapshot_arrived, snapshot, node, self._now)

    def _is_current(self, life: _Life) -> bool:
        return self._lives.get(life.visitor.request.sandbox) is life

    def _begin(self, life: _Life) -> None:
        machine = life.machine
        if not self._is_current(life) or not machine.alive:
            return
        takes_s = machine.begin(life.visitor)
        peak = len(machine.starting) / machine.node.capacity.cpus
        self.outcome.start_peak = max(self.outcome.start_peak, peak)
        self._at(self._now + takes_s, self._started, life)

    def _started(self, life: _Life) -> None:
        name = life.visitor.request.sandbox
        if self._is_current(life) and life.machine.alive:
            life.machine.starting.discard(name)
            self.outcome.start_s.append(self._now - life.placed_at)
            self._timed(self._scheduler.fleet.started, name, self._now)

    def _end(self, life: _Life) -> None:
        name = life.visitor.request.sandbox
        if self._is_current(life) and life.machine.alive:
            self._leave(life)
            self._timed(self._scheduler.fleet.release, name, self._now)

    def _leave(self, life: _Life) -> None:
        name = life.visitor.request.sandbox
        del self._lives[name]
        if name in life.machine.living:
            life.machine.end(name)

    # ---- nodes

    def _look(self, machine: Machine) -> None:
        if not machine.alive:
            return
        self._at(self._now + REPORT_EVERY_S, self._look, machine)
        report = machine.look(self._now, self._network)
        delay = self._network.lognormvariate(log(REPORT_DELAY_MEDIAN_S), REPORT_DELAY_SPREAD)
        if self._network.random() >= REPORT_LOST:
            self._at(self._now + delay, self._deliver, report)

    def _deliver(self, report: Pressure) -> None:
        before = thread_time()
        self._scheduler.fleet.report(report, self._now)
        self.outcome.reporting_s += thread_time() - before
        self.outcome.reports += 1

    def _die(self, machine: Machine) -> None:
        machine.alive = False
        self._at(self._now + NOTICED_AFTER_S, self._notice, machine)

    def _notice(self, machine: Machine) -> None:
        """The rest of a lost sandbox's life is led elsewhere, from its last snapshot."""
        lives = self._lives_on(machine)
        requests = {name: life.visitor.request for name, life in lives.items()}
        snapshots = {name: life.visitor.snapshot for name, life in lives.items()}
        snapshots = {name: snapshot for name, snapshot in snapshots.items() if snapshot}
        alive = [other for other in self._machines.values() if other.alive]
        for snapshot in snapshots.values():
            keeper = self._failures.choice(alive)
            self._scheduler.fleet.snapshot_arrived(snapshot, keeper.node.id, self._now)
        plan = self._timed(
            plan_loss, self._scheduler, machine.node.id, requests, snapshots, self._now
        )
        for name in lives:
            del self._lives[name]
        self.outcome.placements += len(lives)
        self.outcome.resumed += len(plan.resumed)
        self.outcome.failed += len(plan.waiting)
        self.outcome.lost += len(plan.lost)
        for placement in plan.resumed:
            self._go_on(placement, lives[placement.sandbox], snapshots[placement.sandbox])

    def _drain(self, machine: Machine) -> None:
        lives = self._lives_on(machine)
        requests = {name: life.visitor.request for name, life in lives.items()}
        plan = self._timed(plan_drain, self._scheduler, machine.node.id, requests, self._now)
        self.outcome.placements += len(lives)
        self.outcome.moved += len(plan.moves)
        for placement in plan.moves:
            life = lives[placement.sandbox]
            self._leave(life)
            self._go_on(placement, life, placement.sandbox)

    def _go_on(self, placement: Placement, life: _Life, state: str) -> None:
        self._settle(placement, life.visitor, max(life.ends_at, self._now + COPY_S), state)

    def _lives_on(self, machine: Machine) -> dict[str, _Life]:
        there = self._scheduler.fleet.node(machine.node.id).sandboxes
        return {name: self._lives[name] for name in there}

    def _sample(self, _: None) -> None:
        self._at(self._now + SAMPLE_EVERY_S, self._sample)
        nodes = self._scheduler.fleet.nodes
        ready = [
            machine.share
            for name, machine in self._machines.items()
            if machine.alive and nodes[name].node.state == "ready"
        ]
        mean = sum(ready) / len(ready) if ready else 0.0
        if mean > 0:
            self.outcome.hottest_over_mean.append(max(ready) / mean)
            self.outcome.busiest = max(self.outcome.busiest, mean)
