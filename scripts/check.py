"""Everything `make check` looks at, one after the other; all findings are shown, not the first."""

import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent

CHECKS: list[tuple[str, list[str]]] = [
    ("lint", [str(BIN / "ruff"), "check", "--quiet", "."]),
    ("formatting", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
    ("import rules", [str(BIN / "lint-imports")]),
    ("house rules", [sys.executable, "scripts/check_house.py"]),
    ("generated docs", [sys.executable, "scripts/generate_docs.py", "--check"]),
    ("types", [str(BIN / "mypy")]),
]


def main() -> int:
    failed = []
    for name, command in CHECKS:
        began = time.monotonic()
        result = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        word = "ok" if result.returncode == 0 else "FAILED"
        print(f"check {name:<15} {word:<7} {time.monotonic() - began:5.1f} s", flush=True)
        if result.returncode != 0:
            failed.append(name)
            print(result.stdout + result.stderr, flush=True)
    if failed:
        print(f"make check found problems in: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
