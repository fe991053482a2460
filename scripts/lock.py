"""Resolve the newest versions that pyproject.toml allows and write requirements.lock.

A new, empty virtual environment is used, so nothing that was installed by hand gets in.
Local version labels (`+cpu`) are dropped: the lock is valid for every build of a release.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = "# Exact versions for Python 3.11. Written by `make lock`; do not edit.\n"


def wanted() -> list[str]:
    """Direct requirements, with the torch pin first and what builds the package last."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        data = tomllib.load(file)
    project = data["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    return [*project["dependencies"], *extras, *data["build-system"]["requires"]]


def main() -> None:
    requirements = wanted()
    torch = next(name for name in requirements if re.match(r"torch\b", name))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        # torch alone first: a build that is already at hand must not lose against another
        # build that a wider range of some other package would admit.
        subprocess.run([*pip, "install", torch], check=True)
        subprocess.run([*pip, "install", *requirements], check=True)
        frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True)
    lines = [
        re.sub(r"\+\w+$", "", line)
        for line in frozen.stdout.decode().splitlines()
        if not re.match(r"(pip|wheel)==", line)
    ]
    LOCK.write_text(HEADER + "\n".join(sorted(lines, key=str.lower)) + "\n")
    print(f"{LOCK.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
