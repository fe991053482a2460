"""Try the scheduler on a fleet that exists on paper only."""

import json
from typing import Annotated, Any

import typer

from journeyman.observe import Progress
from journeyman.sandbox.fleet.chooser import POLICIES, PolicyName
from journeyman.sandbox.fleet.simulation.outcome import Outcome, ratios
from journeyman.sandbox.fleet.simulation.simulate import Simulation
from journeyman.types.failure import UserError

MEASURED: PolicyName = "pressure"


def register(group: typer.Typer) -> None:
    """Add `journeyman sandbox simulate`."""

    @group.command()
    def simulate(
        nodes: Annotated[int, typer.Option(min=1, help="Nodes, of three sizes.")] = 1000,
        sandboxes: Annotated[
            int, typer.Option(min=1, help="Sandboxes that arrive within ten minutes.")
        ] = 100_000,
        seed: Annotated[int, typer.Option(help="The same seed gives the same workload.")] = 0,
        policy: Annotated[
            list[str] | None,
            typer.Option(
                help="Another policy to run on the same workload, random or round-robin, for "
                "comparison; repeatable."
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        """Simulate a fleet with the real scheduler: bursts of training runs, people's sessions,
        nodes of several sizes that report late or not at all, drain and fail."""
        others = _known(policy or [])
        with Progress() as progress:
            outcomes = {
                name: _run(name, nodes, sandboxes, seed, progress) for name in (MEASURED, *others)
            }
        figures = _figures(outcomes)
        typer.echo(json.dumps(figures) if as_json else _table(figures))


def _known(names: list[str]) -> list[PolicyName]:
    known: dict[str, PolicyName] = {name: name for name in POLICIES if name != MEASURED}
    for name in names:
        if name not in known:
            raise UserError(
                f"there is no policy {name!r} to compare with", f"Use {' or '.join(known)}."
            )
    return [known[name] for name in dict.fromkeys(names)]


def _run(policy: PolicyName, nodes: int, sandboxes: int, seed: int, progress: Progress) -> Outcome:
    simulation = Simulation(nodes, sandboxes, policy, seed)
    with progress.stage(policy, sandboxes, "sandboxes") as stage:
        for arrived in simulation.run():
            stage.advance(arrived - stage.done)
    return simulation.outcome


def _figures(outcomes: dict[PolicyName, Outcome]) -> dict[str, Any]:
    ours = outcomes[MEASURED]
    compared = {
        name: {**outcome.figures(), "ratios": ratios(outcome, to=ours)}
        for name, outcome in outcomes.items()
        if name != MEASURED
    }
    return ours.figures() | ({"compared": compared} if compared else {})


def _table(figures: dict[str, Any]) -> str:
    columns = {MEASURED: figures, **figures.get("compared", {})}
    names = [name for name in figures if name != "compared"]
    rows = [["", *columns]]
    rows += [[name, *(str(column[name]) for column in columns.values())] for name in names]
    return "\n".join(f"{row[0]:>26}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows)
