"""Train a coding agent and measure whether it got better: meant for 20 minutes on two cores."""

from pathlib import Path

import typer

from journeyman.cli.training import DryRun, Overrides, Resume, Runs, train


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(help=__doc__)
    def quickstart(
        overrides: Overrides = None,
        resume: Resume = None,
        dry_run: DryRun = False,
        runs: Runs = Path("runs"),
    ) -> None:
        train("quickstart", overrides, resume, dry_run, runs, rename=True)
