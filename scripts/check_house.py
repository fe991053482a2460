"""Rules of the house that no linter knows. Prints each violation as `file:line: what`.

- functions have at most 80 lines, files at most 500
- no package registry is named by its host, and no path of one particular machine appears
- every direct requirement of pyproject.toml is pinned in requirements.lock
- every relative link in the documentation leads somewhere
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 500

# Written in pieces, so that this file does not break its own rule.
FORBIDDEN = {
    "names a package registry's host": re.compile(
        "|".join(
            [
                r"py" + r"pi\.org",
                r"python" + r"hosted\.org",
                r"registry\.npm" + r"js",
                r"deb\.deb" + r"ian\.org",
            ]
        )
    ),
    "names a path of one machine": re.compile(
        r"(?<![\w./])/(?:wo" + r"rk|root/ve" + r"nv|fa" + r"rm|opt/wh" + r"eels|opt/py" + r"pi)/"
    ),
}
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def tracked_files() -> list[Path]:
    """Files git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def long_code(path: Path, text: str) -> Iterator[str]:
    num_lines = text.count("\n")
    if num_lines > MAX_FILE_LINES:
        yield f"{path}:1: file has {num_lines} lines (at most {MAX_FILE_LINES})"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines"


def forbidden_words(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                yield f"{path}:{number}: {what}: {line.strip()[:80]}"


def broken_links(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if not (ROOT / path.parent / target).exists():
                yield f"{path}:{number}: link leads nowhere: {target}"


def unpinned() -> Iterator[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project.get("optional-dependencies", {}).values()
    direct = [*project["dependencies"], *(name for group in extras for name in group)]
    locked = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line
    }
    for requirement in direct:
        match = re.match(r"[\w.-]+", requirement)
        name = re.sub(r"[-_.]+", "-", match.group() if match else requirement).lower()
        if name not in locked:
            yield f"requirements.lock: {name} is missing; run `make lock`"


def violations() -> Iterator[str]:
    yield from unpinned()
    for absolute in tracked_files():
        path = absolute.relative_to(ROOT)
        try:
            text = absolute.read_text()
        except UnicodeDecodeError:
            continue  # a picture or other binary file has no lines to look at
        yield from forbidden_words(path, text)
        if path.suffix == ".py":
            yield from long_code(path, text)
        if path.suffix == ".md":
            yield from broken_links(path, text)


def main() -> int:
    found = list(violations())
    print("\n".join(found) if found else "house rules hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
