"""Tell what this machine can do, what each missing thing would give, and how to get it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy.engine import make_url

from journeyman.config.home import home_dir
from journeyman.store import Store, default_url
from journeyman.types import JourneymanError, Value

LIMIT_S = 10.0
_MODEL = "smollm2-135m"
_TASKS = "quickstart"


class Finding(Value):
    """One thing looked at."""

    name: str
    present: bool
    detail: str
    gives: str
    """What having it gives."""
    cure: str = ""
    """The one line that gets it; empty where it is there, or cannot be had by a command."""


class Probe(Value):
    """One thing to look at: `look` returns what was seen, or raises Missing."""

    name: str
    gives: str
    cure: str
    look: Callable[[], str]


class Missing(Exception):
    """It is not there, or does not work; the text says what was seen."""


def register(app: typer.Typer) -> None:
    """Add `journeyman doctor`."""

    @app.command("doctor")
    def doctor(
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    ) -> None:
        """Tell what this machine can do, what each missing thing would give, and how to get it."""
        findings = examine(probes())
        if as_json:
            body = {finding.name: finding.model_dump(exclude={"name"}) for finding in findings}
            typer.echo(json.dumps(body))
        else:
            _show(findings)


def examine(wanted: Sequence[Probe]) -> list[Finding]:
    """Look at everything at once; what takes longer than LIMIT_S does not work."""
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        return list(pool.map(_examine, wanted))


def _examine(probe: Probe) -> Finding:
    try:
        detail, present = probe.look(), True
    except (Missing, JourneymanError) as missing:
        detail, present = str(missing).splitlines()[0], False
    cure = "" if present else probe.cure
    return Finding(name=probe.name, present=present, detail=detail, gives=probe.gives, cure=cure)


def probes() -> list[Probe]:
    """Everything the doctor looks at, in the order shown."""
    apt = "apt-get install -y"
    rows: list[tuple[str, str, str, Callable[[], str]]] = [
        ("cores", "everything shares them; 2 are enough", "", _cores),
        ("memory", "8 GB for the quickstart", "", _memory),
        ("disk", "10 GB for models, templates and runs", "", _disk),
        ("avx2", "the portable native kernels' wide path", "", _cpu_flag("avx2")),
        ("avx512_bf16", "the native kernels for CPUs without AMX", "", _cpu_flag("avx512_bf16")),
        ("avx512_vnni", "8-bit kernels", "", _cpu_flag("avx512_vnni")),
        ("amx_bf16", "the native kernels on matrix tiles", "", _cpu_flag("amx_bf16")),
        (
            "gvisor",
            "the sandbox for untrusted code; forks, hibernation",
            "make setup  (as root)",
            _machine_probe("gvisor"),
        ),
        (
            "bubblewrap",
            "a weaker sandbox for development, by name only",
            f"{apt} bubblewrap",
            _machine_probe("bubblewrap"),
        ),
        (
            "kvm",
            "virtual machines at full speed",
            "make setup  (as root, on a host with virtualisation)",
            _machine_probe("kvm"),
        ),
        ("qemu", "virtual machines, emulated", "make setup  (as root)", _machine_probe("qemu")),
        ("gpu", "training and serving of larger models", "", _gpu),
        ("ray", "the controller's actors", "make setup", _ray),
        ("sqlite", "the store, by default", "make setup", _sqlite),
        (
            "postgresql",
            "one store for many machines",
            "pip install 'journeyman[postgresql]', then give the store's URL",
            _postgresql,
        ),
        ("compiler", "builds native kernels and the guest agent", f"{apt} gcc g++", _compiler),
        ("model", "the starting weights", f"journeyman model fetch {_MODEL}", _model),
        ("tasks", "what is learned from", "journeyman tasks build", _tasks),
        ("kernels", "generation without PyTorch's overhead", "make setup", _kernels),
    ]
    return [Probe(name=n, gives=g, cure=c, look=look) for n, g, c, look in rows]


def run_limited(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end within LIMIT_S. Raises Missing when it cannot or does not."""
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise Missing(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"gave no answer within {LIMIT_S:.0f} s") from error


def _answer(argv: Sequence[str]) -> str:
    """The last line of a program that must succeed."""
    done = run_limited(argv)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    if done.returncode != 0:
        raise Missing(last)
    return last


def _python(code: str) -> str:
    return _answer([sys.executable, "-c", code])


def _machine_probe(name: str) -> Callable[[], str]:
    return lambda: _answer([sys.executable, "-m", "journeyman.sandbox.node.machine_probe", name])


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} ({_cpu_info('model name') or 'unknown model'})"


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if total < 7.5:
        raise Missing(f"{total:.0f} GiB")
    return f"{total:.0f} GiB"


def _disk() -> str:
    place = home_dir()
    while not place.exists():
        place = place.parent
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize / 2**30
    if free < 10:
        raise Missing(f"{free:.0f} GiB free at {place}")
    return f"{free:.0f} GiB free at {place}"


def _cpu_info(key: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _cpu_flag(flag: str) -> Callable[[], str]:
    def look() -> str:
        if flag not in _cpu_info("flags").split():
            raise Missing("this CPU has none")
        return "yes"

    return look


def _gpu() -> str:
    return _python(
        "import sys, torch\n"
        "if not torch.cuda.is_available(): sys.exit('PyTorch sees no GPU')\n"
        "free = torch.cuda.get_device_properties(0)\n"
        "(torch.ones(8, device='cuda') * 2).sum().item()\n"
        "print(f'{torch.cuda.device_count()} × {free.name}, {free.total_memory >> 30} GiB')"
    )


def _ray() -> str:
    if find_spec("ray") is None:
        raise Missing("not installed")
    return _python("import importlib.metadata as m; print(m.version('ray'))")


def _sqlite() -> str:
    url = default_url()
    if not Path(make_url(url).database or "").exists():
        return _python("import sqlite3; print(sqlite3.sqlite_version + ', no store yet')")
    store = Store(url)
    try:
        return f"{url} with {len(store.run_names())} runs"
    finally:
        store.close()


def _postgresql() -> str:
    if find_spec("psycopg") is None:
        raise Missing("the driver psycopg is not installed")
    return _python("import psycopg; print('driver ' + psycopg.__version__)")


def _compiler() -> str:
    return _answer(["g++", "-dumpfullversion"]).join(("g++ ", ""))


def _model() -> str:
    place = home_dir() / "models" / _MODEL
    lacking = [f for f in ("model.safetensors", "tokenizer.json") if not (place / f).is_file()]
    if lacking:
        raise Missing(f"{place} lacks {', '.join(lacking)}")
    return str(place)


def _tasks() -> str:
    place = home_dir() / "tasks" / _TASKS
    count = sum(1 for _ in place.rglob("task.toml")) if place.is_dir() else 0
    if not count:
        raise Missing(f"no tasks in {place}")
    return f"{count} in {place}"


def _kernels() -> str:
    built = sorted((home_dir() / "build").rglob("*.so"))
    if not built:
        raise Missing(f"none built in {home_dir() / 'build'}")
    return ", ".join(sorted({path.stem for path in built}))


def _show(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    lines = Table.grid(padding=(0, 2))
    lines.add_column()
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for finding in findings:
        mark = "[green]✓[/]" if finding.present else "[yellow]✗[/]"
        lines.add_row(mark, f"[bold]{finding.name}[/]", escape(finding.detail))
        if not finding.present:
            lines.add_row("", "", f"[dim]would give {escape(finding.gives)}[/]")
            if finding.cure:
                lines.add_row("", "", f"[dim]get it:[/] {escape(finding.cure)}")
    console.print(lines)
