"""Sandboxes: trying an engine's promises."""

import typer

from journeyman.cli import sandbox_conformance


def register(app: typer.Typer) -> None:
    """Add `journeyman sandbox`."""
    group = typer.Typer(help=__doc__)
    app.add_typer(group, name="sandbox")

    @group.callback()
    def main() -> None:
        """Sandboxes: trying an engine's promises."""

    sandbox_conformance.add(group)
