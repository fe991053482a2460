"""`journeyman sandbox tenant`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from journeyman.config.home import home_dir
from journeyman.sandbox.service.tenants import TENANTS_FILE, Tenants

State = Annotated[
    Path | None,
    typer.Option(help="State directory of the service, as for `sandboxd`.", show_default=False),
]


def register(group: typer.Typer) -> None:
    """Add `tenant` to the group of sandbox commands."""
    tenant = typer.Typer(no_args_is_help=True)
    group.add_typer(tenant, name="tenant")

    @tenant.callback()
    def main() -> None:
        """Who may use the sandbox service over the network."""

    @tenant.command("add")
    def add(
        name: Annotated[str, typer.Argument(help="Small letters, digits and hyphens.")],
        state: State = None,
    ) -> None:
        """Make a tenant and print its key, which is shown this once."""
        typer.echo(_tenants(state).add(name))

    @tenant.command("ls")
    def list_all(
        state: State = None,
        as_json: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
    ) -> None:
        """Names of all tenants."""
        names = _tenants(state).names()
        typer.echo(json.dumps(names) if as_json else "\n".join(names))

    @tenant.command("rm")
    def remove(name: Annotated[str, typer.Argument()], state: State = None) -> None:
        """Make a tenant's key worthless, at once."""
        _tenants(state).remove(name)


def _tenants(state: Path | None) -> Tenants:
    return Tenants((state or home_dir() / "sandboxes") / TENANTS_FILE)
