"""Reinforcement from the supervised plateau, beside its controls: meant for about an hour."""

from pathlib import Path

import typer

from journeyman.cli.training import DryRun, Overrides, Resume, Runs, train


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(help=__doc__)
    def learn(
        overrides: Overrides = None,
        resume: Resume = None,
        dry_run: DryRun = False,
        runs: Runs = Path("runs"),
    ) -> None:
        train("learn", overrides, resume, dry_run, runs, rename=True)
