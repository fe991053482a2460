"""Serve a checkpoint as a coding agent, with its sandboxes, on one port."""

import asyncio
import os
import signal
from typing import Annotated

import typer

from journeyman.cli.composition import (
    DEFAULT_MODEL,
    Driver,
    Production,
    composed,
    find_checkpoint,
)
from journeyman.types import UserError

TOKEN_VARIABLE = "JOURNEYMAN_AGENT_TOKEN"
_LOCAL = {"127.0.0.1", "::1", "localhost"}

CheckpointOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint directory or a fetched model's name; default: the newest checkpoint "
        f"below ./runs, else {DEFAULT_MODEL}.",
        show_default=False,
    ),
]
DriverOption = Annotated[
    Driver,
    typer.Option(
        help="gvisor, bubblewrap (weaker: for development only), or auto: gvisor or an error."
    ),
]
StoreOption = Annotated[
    str | None, typer.Option(help="Store of the sessions' episodes; default: SQLite at home.")
]


def register(app: typer.Typer) -> None:
    """Add `journeyman serve`."""

    @app.command("serve")
    def serve(
        *,
        checkpoint: CheckpointOption = None,
        host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.")] = 8100,
        driver: DriverOption = "auto",
        store: StoreOption = None,
        model_url: Annotated[
            str | None,
            typer.Option(help="Use this OpenAI-compatible endpoint instead of a checkpoint."),
        ] = None,
        model: Annotated[str, typer.Option(help="Model name to ask that endpoint for.")] = "",
    ) -> None:
        """Serve the agent (sessions) and its model (OpenAI's chat completions) until Ctrl-C.

        With JOURNEYMAN_AGENT_TOKEN set, every request must bear that token.
        """
        if model_url and checkpoint:
            raise UserError("--checkpoint and --model-url exclude each other", "give one of them")
        if model and not model_url:
            raise UserError("--model would have no effect without --model-url", "leave it out")
        token = os.environ.get(TOKEN_VARIABLE) or None
        if token is None and host not in _LOCAL:
            raise UserError(
                f"listening on {host} without a token lets anybody in",
                f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1",
            )
        wanted = Production(
            checkpoint=None if model_url else find_checkpoint(checkpoint),
            model_url=model_url,
            model=model,
            driver=driver,
            store=store,
            token=token,
        )
        asyncio.run(_serve(wanted, host, port))


async def _serve(wanted: Production, host: str, port: int) -> None:
    from journeyman.agent.serving import serving  # noqa: PLC0415

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with (
        composed(wanted) as application,
        serving(application, host=host, port=port) as url,
    ):
        typer.echo(f"serving {wanted.checkpoint or wanted.model_url} at {url} (Ctrl-C ends it)")
        await stop.wait()
