"""Run the sandbox service on a unix socket."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from journeyman.config.home import home_dir


def register(app: typer.Typer) -> None:
    """Add `journeyman sandboxd`."""

    @app.command()
    def sandboxd(
        driver: Annotated[
            str,
            typer.Option(
                help="gvisor, qemu, bubblewrap (weaker: for development only), or auto: qemu "
                "where KVM boots a guest, else gvisor, else qemu emulated, never bubblewrap."
            ),
        ] = "auto",
        socket: Annotated[
            Path | None,
            typer.Option(
                help="Unix socket to serve on; the token lies beside it.", show_default=False
            ),
        ] = None,
        state: Annotated[
            Path | None,
            typer.Option(help="Directory of the sandboxes' state.", show_default=False),
        ] = None,
        listen: Annotated[
            str,
            typer.Option(
                help="HOST:PORT where tenants reach the E2B-compatible API; nowhere if empty.",
                show_default=False,
            ),
        ] = "",
        lifeline: Annotated[bool, typer.Option(help="End when standard input ends.")] = False,
    ) -> None:
        """Run the sandbox service on a unix socket until Ctrl-C."""
        # Imported here: `journeyman --help` needs none of it.
        from journeyman.sandbox.service.serve import parse_address, serve  # noqa: PLC0415

        directory = state or home_dir() / "sandboxes"
        address = parse_address(listen) if listen else None
        asyncio.run(serve(socket or directory / "socket", directory, driver, lifeline, address))
