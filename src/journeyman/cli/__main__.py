"""`python -m journeyman.cli` is the `journeyman` command."""

from journeyman.cli.main import main

main()
