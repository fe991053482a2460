"""The package sources this host uses, so that what we install comes from the same place."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from journeyman.types.failure import UserError

_APT = Path("/etc/apt")


@dataclass(frozen=True)
class AptSource:
    """One archive: address, suites, components, and options such as `signed-by`."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        """In one-line format, one line for each suite."""
        options = " ".join(f"{name}={value}" for name, value in self.options)
        bracket = f"[{options}] " if options else ""
        return [
            f"deb {bracket}{self.uri} {suite} {' '.join(self.components)}" for suite in self.suites
        ]


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Of the `sources.list` format."""
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        if not line.startswith("deb "):
            continue
        rest = line[4:].strip()
        options: tuple[tuple[str, str], ...] = ()
        if rest.startswith("["):
            bracket, _, rest = rest[1:].partition("]")
            options = tuple(
                (name, value)
                for name, _, value in (item.partition("=") for item in bracket.split())
                if value
            )
        words = rest.split()
        if len(words) >= 3:
            yield AptSource(words[0], (words[1],), tuple(words[2:]), options)


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Of the `.sources` format. Keys embedded in the file itself are not supported."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n\n"):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        signed = fields.get("signed-by", "")
        options = (("signed-by", signed),) if signed.startswith("/") else ()
        for uri in fields.get("uris", "").split():
            yield AptSource(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                options,
            )


def read_sources(root: Path = _APT) -> list[AptSource]:
    """All enabled binary sources of this host."""
    found: list[AptSource] = []
    directory = root / "sources.list.d"
    for path in (root / "sources.list", *sorted(directory.glob("*.list"))):
        if path.exists():
            found += parse_one_line(path.read_text(encoding="utf-8"))
    for path in sorted(directory.glob("*.sources")):
        found += parse_deb822(path.read_text(encoding="utf-8"))
    return found


def debian_sources(codename: str, sources: Iterable[AptSource]) -> list[AptSource]:
    """Those of the release itself, its updates and its security fixes; component main only."""
    wanted = (codename, f"{codename}-updates", f"{codename}-security")
    chosen = []
    for source in sources:
        suites = tuple(suite for suite in source.suites if suite in wanted)
        if suites and "main" in source.components:
            chosen.append(replace(source, suites=suites, components=("main",)))
    if not any(codename in source.suites for source in chosen):
        raise UserError(
            f"no package source below {_APT} offers Debian {codename!r}",
            "Add the Debian mirror you use to /etc/apt/sources.list and run the set-up again.",
        )
    return chosen


def backports_source(codename: str, sources: Iterable[AptSource]) -> AptSource | None:
    """The source to add for backports, at the host's own mirror; None when it is there already."""
    everything = list(sources)
    suite = f"{codename}-backports"
    if any(suite in source.suites for source in everything):
        return None
    main = next(s for s in debian_sources(codename, everything) if codename in s.suites)
    return replace(main, suites=(suite,))


def codename() -> str:
    """Of this host's release. Raises UserError when it is not Debian."""
    fields = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
        if "=" in line
    )
    if fields.get("ID", "").strip('"') != "debian":
        raise UserError(
            f"sandbox set-up knows Debian only; this is {fields.get('PRETTY_NAME', 'unknown')}",
            "Use a Debian 12 machine, or ask for `--driver bubblewrap` and build a rootfs there.",
        )
    return fields["VERSION_CODENAME"].strip('"')
