"""Sandboxes, and the fleet of machines they run on."""

import typer

from journeyman.cli import sandbox_conformance, sandbox_fleet, sandbox_simulate, sandbox_tenant


def register(app: typer.Typer) -> None:
    """Add `journeyman sandbox`."""
    group = typer.Typer(help=__doc__, no_args_is_help=True)
    app.add_typer(group, name="sandbox")

    @group.callback()
    def main() -> None:
        """Sandboxes, and the fleet of machines they run on."""

    sandbox_conformance.register(group)
    sandbox_fleet.register(group)
    sandbox_simulate.register(group)
    sandbox_tenant.register(group)
