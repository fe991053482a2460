"""`python -m journeyman.model.kernels.build`: compile the native kernels ahead of first use."""

import argparse
import sys

from journeyman.model.kernels.compiler import build
from journeyman.model.kernels.instructions import INSTRUCTION_SETS, available, choose
from journeyman.types import UserError


def main() -> int:
    """Build for this machine; with --all also what it cannot run, to see that it compiles."""
    parser = argparse.ArgumentParser(prog="journeyman.model.kernels.build", description=__doc__)
    parser.add_argument("--isa", help="only this one (default: the best this machine has)")
    parser.add_argument("--all", action="store_true", help="every instruction set")
    chosen = parser.parse_args()
    try:
        wanted = INSTRUCTION_SETS if chosen.all else (choose(chosen.isa),)
        for isa in wanted:
            path = build(isa)
            note = "" if isa in available() else " (compiled only: this machine cannot run it)"
            print(f"{isa.name}: {path}{note}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
