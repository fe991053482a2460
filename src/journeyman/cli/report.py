"""Write the report of a run anew from what the store holds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from journeyman.chat import ChatFormat
from journeyman.config.home import home_dir
from journeyman.evaluation.report import write_report
from journeyman.store import Store
from journeyman.types import UserError


def register(app: typer.Typer) -> None:
    """Add `journeyman report`."""

    @app.command("report")
    def report(
        run_dir: Annotated[
            Path, typer.Argument(help="The run's directory, for instance runs/demo")
        ],
        store: Annotated[
            str | None, typer.Option(help="Store URL; default: the run's own, else SQLite at home.")
        ] = None,
        checkpoint: Annotated[
            Path | None,
            typer.Option(help="Where to find the tokenizer; default: the run's checkpoint."),
        ] = None,
    ) -> None:
        """Write report.html and report.json of a run anew from what the store holds."""
        run = run_dir.resolve().name
        opened = Store(store)
        config = opened.run_config(run)
        tokenizer = ChatFormat.load(checkpoint or tokenizer_dir(run_dir, config))
        write_report(opened, run, run_dir, tokenizer.decode)
        typer.echo(str(run_dir / "report.html"))


def tokenizer_dir(run_dir: Path, config: dict[str, Any]) -> Path:
    """The newest directory below the run with a tokenizer, else that of the model it began with.

    Raises UserError when there is neither.
    """
    found = sorted(run_dir.rglob("tokenizer.json"), key=lambda file: file.stat().st_mtime)
    if found:
        return found[-1].parent
    model = str(config.get("model", {}).get("checkpoint", ""))
    for candidate in (Path(model), home_dir() / "models" / model):
        if model and (candidate / "tokenizer.json").is_file():
            return candidate
    raise UserError(
        f"no tokenizer below {run_dir}, and none for its model {model!r}",
        "name a checkpoint directory with --checkpoint",
    )
