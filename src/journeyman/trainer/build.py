"""`python -m journeyman.trainer.build`: compile the native passes ahead of first use."""

import sys

from journeyman.model.kernels.compiler import build
from journeyman.model.kernels.instructions import choose
from journeyman.trainer.native_library import SOURCES
from journeyman.types import UserError


def main() -> int:
    """Build for this machine."""
    try:
        isa = choose()
        print(f"{isa.name}: {build(isa, SOURCES)}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
