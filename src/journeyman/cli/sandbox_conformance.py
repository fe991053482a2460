"""`journeyman sandbox conformance`."""

import asyncio
from typing import Annotated

import typer


def register(group: typer.Typer) -> None:
    """Add `conformance` to the group of sandbox commands."""

    @group.command("conformance")
    def conformance(
        driver: Annotated[
            str, typer.Option(help="gvisor, qemu, bubblewrap, or auto as the service chooses.")
        ] = "auto",
        only: Annotated[
            str, typer.Option(help="Only cases whose name holds this.", show_default=False)
        ] = "",
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        """Try every promise of a sandbox driver on the real engine; status 1 when one is broken."""
        # Imported here: `journeyman --help` needs none of it.
        from journeyman.sandbox.conformance.suite import (  # noqa: PLC0415
            CaseResult,
            run_suite,
            select,
        )

        def tell(result: CaseResult) -> None:
            if as_json:
                return
            typer.echo(f"{result.outcome:<13} {result.seconds:6.1f} s  {result.promise}")
            if result.seen:
                typer.echo(f"{'':<13} {'':>8}  {result.seen}")

        report = asyncio.run(run_suite(driver, select(only), tell))
        if as_json:
            typer.echo(report.model_dump_json())
        else:
            typer.echo(f"{report.driver}: {report.isolation}")
            typer.echo(f"{len(report.results)} cases, {report.failed} failed")
        if report.failed:
            raise typer.Exit(1)
