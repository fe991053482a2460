"""`python -m journeyman.sandbox.service`: what `journeyman sandboxd` runs."""

import argparse
import asyncio
import sys
from pathlib import Path

from journeyman.sandbox.service.serve import serve
from journeyman.types.failure import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="journeyman.sandbox.service")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--lifeline", action="store_true", help="end when stdin ends")
    options = parser.parse_args()
    try:
        asyncio.run(serve(options.socket, options.state, options.driver, options.lifeline))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
