"""Measure what this machine makes of the loop and its parts."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from journeyman.flywheel.bench import bench_loop
from journeyman.flywheel.inputs import newest_checkpoint
from journeyman.observe import Progress
from journeyman.sandbox.bench.machine import bench_sandboxes


def register(app: typer.Typer) -> None:
    """Add `journeyman bench`."""
    bench = typer.Typer(help=__doc__)
    app.add_typer(bench, name="bench")

    @bench.callback()
    def main() -> None:
        """Measure what this machine makes of the loop and its parts."""

    @bench.command("loop")
    def loop(
        checkpoint: Annotated[
            Path | None,
            typer.Option(help="Policy to step from; default: the newest run's, else a warm start."),
        ] = None,
        steps: Annotated[int, typer.Option(min=1, help="Reinforcement steps to time.")] = 2,
        overrides: Annotated[
            list[str] | None, typer.Option("--set", help="section.key=value; repeatable.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        """Seconds per reinforcement step by stage, and the speed of engine, trainer and fork."""
        start = checkpoint or newest_checkpoint(Path("runs"))
        with Progress() as progress:
            figures = asyncio.run(bench_loop(start, steps, overrides or [], progress))
        if as_json:
            typer.echo(json.dumps(figures))
            return
        for stage, seconds in figures["step_s"].items():
            typer.echo(f"{stage:>10} {seconds:8.2f} s a step")
        typer.echo(f"    decode {figures['decode_tok_s']:8.0f} tokens/s (64 sequences)")
        typer.echo(f"     train {figures['train_tok_s']:8.0f} tokens/s (8 × 512)")
        typer.echo(f"      fork {figures['fork_first_exec_s']:8.3f} s to the first command")

    @bench.command("sandbox")
    def sandbox(
        drivers: Annotated[
            list[str] | None,
            typer.Option("--driver", help="Engine to measure; repeatable. Default: gvisor."),
        ] = None,
        quick: Annotated[bool, typer.Option(help="Few calls, within a minute.")] = False,
        seed: Annotated[int, typer.Option(help="Of the random deaths.")] = 1,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        """Fork, hibernation, resumption and commands; capacity; what many lives leave behind."""
        with Progress() as progress:
            figures = asyncio.run(bench_sandboxes(drivers or ["gvisor"], quick, seed, progress))
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            Console().print(_table(figures))


def _table(figures: dict[str, Any]) -> Table:
    capacity, lives = figures["capacity"], figures["lifecycles"]
    table = Table(
        caption=f"{capacity['hibernated']} hibernated and {capacity['active']} active at once; "
        f"{lives['n']} lives left {lives['leaked']} things behind"
    )
    for column in ("driver", "what", "P50", "P95", "n"):
        table.add_column(column)
    for driver, measured in figures["drivers"].items():
        for name, value in measured.items():
            if isinstance(value, dict):
                table.add_row(
                    driver, name, f"{value['p50']:g}", f"{value['p95']:g}", str(value["n"])
                )
            elif isinstance(value, float):
                table.add_row(driver, name, f"{value:g}", "", "")
    return table
