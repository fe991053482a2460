"""`python -m journeyman.sandbox.service`: what `journeyman sandboxd` runs."""

import argparse
import asyncio
import shutil
import sys
from pathlib import Path

from journeyman.sandbox.service.serve import parse_address, serve
from journeyman.types.failure import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="journeyman.sandbox.service")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--listen", help="HOST:PORT of the E2B-compatible API")
    parser.add_argument("--lifeline", action="store_true", help="end when stdin ends")
    parser.add_argument("--remove-at-end", type=Path, help="a directory to remove at the end")
    options = parser.parse_args()
    try:
        listen = parse_address(options.listen) if options.listen else None
        asyncio.run(serve(options.socket, options.state, options.driver, options.lifeline, listen))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    # Only after an orderly end, or when the program that started us is gone: before that, it
    # reads our log there.
    if options.remove_at_end:
        shutil.rmtree(options.remove_at_end, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
