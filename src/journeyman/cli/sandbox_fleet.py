"""Many machines as one sandbox service."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from journeyman.config.home import home_dir

if TYPE_CHECKING:
    from journeyman.sandbox.fleet.node_settings import NodeSettings

Store = Annotated[
    str | None,
    typer.Option(
        help="URL of the fleet's database; default: fleet.db in the Journeyman home.",
        show_default=False,
    ),
]


def register(group: typer.Typer) -> None:
    """Add `journeyman sandbox fleet`."""
    fleet = typer.Typer(help=__doc__, no_args_is_help=True)
    group.add_typer(fleet, name="fleet")
    _add_manager(fleet)
    _add_tokens(fleet)
    _add_node(fleet)


def _url(store: str | None) -> str:
    return store or f"sqlite:///{home_dir() / 'fleet.db'}"


def _add_manager(fleet: typer.Typer) -> None:
    @fleet.command()
    def serve(
        host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port to listen on.")] = 8090,
        store: Store = None,
        config: Annotated[
            Path | None,
            typer.Option(help="TOML file: fleet, scheduler, scale, ec2, bootstrap."),
        ] = None,
    ) -> None:
        """Run the fleet's manager until Ctrl-C. It speaks plain HTTP: put TLS in front of it, or
        keep it in a private network."""
        from journeyman.sandbox.fleet.config import FleetConfig, read_config  # noqa: PLC0415
        from journeyman.sandbox.fleet.serve import serve_fleet  # noqa: PLC0415

        read = read_config(config) if config else FleetConfig()
        asyncio.run(serve_fleet(_url(store), host, port, read))


def _add_tokens(fleet: typer.Typer) -> None:
    @fleet.command()
    def tenant(
        name: Annotated[str, typer.Argument(help="Who will use the token.")],
        store: Store = None,
    ) -> None:
        """Print a new token with which a tenant may use the fleet. It is shown once."""
        from journeyman.sandbox.fleet.sql_owners import SqlOwners  # noqa: PLC0415
        from journeyman.sandbox.fleet.tokens import Tokens  # noqa: PLC0415

        typer.echo(Tokens(SqlOwners(_url(store)).database).add_tenant(name))

    @fleet.command()
    def ticket(store: Store = None) -> None:
        """Print a ticket with which one machine may join, once, within half an hour."""
        from journeyman.sandbox.fleet.sql_owners import SqlOwners  # noqa: PLC0415
        from journeyman.sandbox.fleet.tokens import Tokens  # noqa: PLC0415

        typer.echo(Tokens(SqlOwners(_url(store)).database).add_ticket())


def _add_node(fleet: typer.Typer) -> None:
    @fleet.command("join")
    def join_fleet(
        control: Annotated[str, typer.Argument(help="URL of the fleet's manager.")],
        node: Annotated[str, typer.Option(help="Name of this machine in the fleet.")],
        address: Annotated[str, typer.Option(help="URL at which the manager reaches this one.")],
        host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
        port: Annotated[int, typer.Option(help="Port to listen on.")] = 8085,
        driver: Annotated[str, typer.Option(help="Driver of the sandboxes.")] = "gvisor",
        state: Annotated[
            Path | None,
            typer.Option(
                help="Directory of the node's token and sandboxes; default: node in the "
                "Journeyman home.",
                show_default=False,
            ),
        ] = None,
        ticket_file: Annotated[
            Path | None, typer.Option(help="File with a ticket; needed the first time only.")
        ] = None,
    ) -> None:
        """Run a sandbox service on this machine as a node of a fleet, until Ctrl-C."""
        # Imported here: `journeyman --help` needs none of it.
        from journeyman.sandbox.fleet.node_settings import NodeSettings  # noqa: PLC0415

        ticket = ticket_file.read_text(encoding="utf-8").strip() if ticket_file else None
        directory = state or home_dir() / "node"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = NodeSettings(
            node=node,
            control_url=control,
            address=address,
            host=host,
            port=port,
            drivers=(driver,),
            state=directory,
            templates=home_dir() / "templates",
        )
        asyncio.run(_join(settings, driver, ticket))


async def _join(settings: "NodeSettings", driver: str, ticket: str | None) -> None:
    from journeyman.sandbox.fleet.serve import serve_node  # noqa: PLC0415
    from journeyman.sandbox.service.launch import running_service  # noqa: PLC0415

    async with running_service(driver=driver, state=settings.state / "sandboxes") as url:
        await serve_node(settings, url, ticket)
