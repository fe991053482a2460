"""Train by a configuration of your own."""

from pathlib import Path
from typing import Annotated

import typer

from journeyman.cli import training
from journeyman.cli.training import DryRun, Overrides, Resume, Runs


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(help=__doc__)
    def train(
        config: Annotated[
            str, typer.Argument(help="A shipped configuration's name, or a TOML file.")
        ],
        overrides: Overrides = None,
        resume: Resume = None,
        dry_run: DryRun = False,
        runs: Runs = Path("runs"),
    ) -> None:
        training.train(config, overrides, resume, dry_run, runs, rename=False)
