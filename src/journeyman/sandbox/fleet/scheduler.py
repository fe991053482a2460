"""Where sandboxes go."""

from random import Random

from journeyman.sandbox.fleet.chooser import PolicyName, make_chooser
from journeyman.sandbox.fleet.fleet_load import FleetLoad
from journeyman.sandbox.fleet.load import NodeLoad
from journeyman.sandbox.fleet.placement import Placement, PlacementRequest, Start
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.sandbox.fleet.shortage import explain_shortage, holders_of
from journeyman.types.failure import SandboxError


class Scheduler:
    """Places sandboxes on nodes and remembers what it promised.

    It consumes placement requests, reports of nodes (`fleet.report`) and news of sandboxes
    (`fleet.started`, `fleet.rest`, `fleet.release`); it never waits. No clock is read here: `now`
    is given, and with the same calls and the same seed the same placements come out. Not safe to
    share between threads.
    """

    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        *,
        seed: int = 0,
        policy: PolicyName = "pressure",
    ) -> None:
        self.fleet = FleetLoad(settings or SchedulerSettings())
        self._random = Random(seed)
        self._chooser = make_chooser(policy, self.fleet, self._random)

    def place(self, request: PlacementRequest, now: float) -> Placement:
        """Choose a node and reserve what the sandbox may use there.

        A hibernated sandbox, and one on a node that drains, is placed anew and moves with its
        state; one of a lost node starts from the snapshot that the request names. What it was
        promised before ends. Raises NoCapacity naming what is short, SandboxError for a
        sandbox that runs on a ready node; then nothing has changed.
        """
        before = self.fleet.reservation(request.sandbox)
        if before is None:
            return self._reserve(request, self._choose(request, now, None), None, now)
        home = before.load
        if not before.resting and home.node.state == "ready":
            raise SandboxError(
                f"sandbox {request.sandbox} is placed on node {home.node.id} already",
                "Release it first, or drain the node.",
            )
        home.lift(before)
        try:
            chosen = self._choose(request, now, home)
        finally:
            home.put_back(before)
        return self._reserve(request, chosen, home, now)

    def place_on(self, request: PlacementRequest, node_id: str, now: float) -> Placement:
        """On this node, where its state lies, or nowhere: a fork. Raises as `place` does."""
        load = self.fleet.node(node_id)
        if not load.takes(request.driver) or not load.fits(request):
            bound = request.model_copy(update={"at_holder": True})
            raise explain_shortage(self.fleet, bound, load)
        self.fleet.reserve(request, load, now)
        return Placement(sandbox=request.sandbox, node=node_id, start="local")

    def _choose(self, request: PlacementRequest, now: float, home: NodeLoad | None) -> NodeLoad:
        if request.at_holder:
            load = self._least_full_holder(request, now, home)
        else:
            load = self._chooser.choose(request, now, home)
        if load is None:
            raise explain_shortage(self.fleet, request, home)
        return load

    def _least_full_holder(
        self, request: PlacementRequest, now: float, home: NodeLoad | None
    ) -> NodeLoad | None:
        use = self.fleet.use
        fitting = [
            load
            for load in holders_of(self.fleet, request, home)
            if load.takes(request.driver) and load.fits(request)
        ]
        return min(fitting, key=lambda load: load.share(now, use, request), default=None)

    def _reserve(
        self, request: PlacementRequest, load: NodeLoad, home: NodeLoad | None, now: float
    ) -> Placement:
        start, source = self._start(request.snapshot, load, home, now)
        moves = home is not None and source == home.node.id
        fetches = start != "local" and not moves
        if fetches:
            self.fleet.expect_snapshot(request.snapshot, load.node.id)
        self.fleet.reserve(request, load, now, waits_for=request.snapshot if fetches else "")
        return Placement(sandbox=request.sandbox, node=load.node.id, start=start, copy_from=source)

    def _start(
        self, snapshot: str, load: NodeLoad, home: NodeLoad | None, now: float
    ) -> tuple[Start, str]:
        node = load.node.id
        if home is not None and home.node.state != "lost":
            return ("local", "") if home is load else ("copy", home.node.id)
        if self.fleet.has_snapshot(snapshot, node):
            return "local", ""
        sources = self.fleet.draw_holders(snapshot, self.fleet.settings.choices, self._random)
        if not sources:
            return "build", ""
        use = self.fleet.use
        return "copy", min(sources, key=lambda source: source.share(now, use)).node.id
