"""Prepare this machine: packages, sandbox engine, native code, model, tasks.

Runs on a bare Python 3.11 (standard library only). Each step is announced, streams its own
progress and leaves a stamp over everything its result depends on; a step whose stamp still holds
is skipped, so a second run takes a moment.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
HOME = Path(os.environ.get("JOURNEYMAN_HOME") or Path.home() / ".local/share/journeyman").absolute()


ENGINES = {"gvisor": ("runsc",), "qemu": ("qemu-system-x86_64",), "bubblewrap": ()}
"""Sandbox driver → programs it cannot do without."""


@dataclass(frozen=True)
class Step:
    """One piece of the set-up.

    `inputs` are files or folders below the repository root whose content decides whether the
    step has to run again. `products` are paths that must exist, `programs` must be on PATH.
    """

    name: str
    title: str
    expect: str
    commands: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...] = ()
    products: tuple[Path, ...] = ()
    programs: tuple[str, ...] = ()
    stamps: Path = HOME / "setup"
    cure: str = ""

    def stamp(self) -> Path:
        return self.stamps / self.name

    def fingerprint(self) -> str:
        # Python by its version: the same one under another path is no reason to start anew.
        commands = repr(self.commands).replace(sys.executable, sys.version)
        digest = hashlib.sha256(commands.encode())
        for path in sorted(_files(self.inputs)):
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        stamp = self.stamp()
        return (
            stamp.exists()
            and all(path.exists() for path in self.products)
            and all(shutil.which(program) for program in self.programs)
            and stamp.read_text() == self.fingerprint()
        )

    def mark_done(self) -> None:
        self.stamps.mkdir(parents=True, exist_ok=True)
        self.stamp().write_text(self.fingerprint())


def _files(inputs: tuple[str, ...]) -> Iterator[Path]:
    for name in inputs:
        path = ROOT / name
        if path.is_dir():
            yield from (
                file
                for file in path.rglob("*")
                if file.is_file() and "__pycache__" not in file.parts
            )
        else:
            yield path


def journeyman(*arguments: str) -> tuple[str, ...]:
    return (str(VENV_PYTHON), "-m", "journeyman.cli", *arguments)


def environment_steps() -> list[Step]:
    """What is private to this checkout: everything below .venv."""
    pip = (str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check")
    if not sys.stdout.isatty():
        pip = (*pip, "-q")
    stamps = VENV / "setup"
    return [
        Step(
            "venv",
            "Virtual environment in .venv",
            "5 s",
            ((sys.executable, "-m", "venv", "--clear", str(VENV)),),
            products=(VENV_PYTHON,),
            stamps=stamps,
            cure="This Python has no venv module: apt-get install -y python3-venv",
        ),
        Step(
            "torch",
            "PyTorch",
            "1 min",
            ((*pip, _pinned("torch")),),
            stamps=stamps,
        ),
        Step(
            "packages",
            "Python packages at the versions of requirements.lock",
            "2 min",
            ((*pip, "-r", "requirements.lock"),),
            inputs=("requirements.lock",),
            stamps=stamps,
        ),
        Step(
            "journeyman",
            "Journeyman itself, editable",
            "5 s",
            ((*pip, "--no-deps", "--no-build-isolation", "-e", "."),),
            inputs=("pyproject.toml",),
            products=(VENV / "bin" / "journeyman",),
            stamps=stamps,
        ),
    ]


def asset_steps(driver: str, tasks: str) -> list[Step]:
    """What all checkouts of this machine share: Debian packages and $JOURNEYMAN_HOME."""
    model = HOME / "models" / "smollm2-135m"
    sandbox = (str(VENV_PYTHON), "-m", "journeyman.sandbox.node.setup", "--driver", driver)
    return [
        Step(
            "sandbox",
            f"Debian packages, guest agent and root file system for sandboxes ({driver})",
            "2 min",
            (sandbox,),
            inputs=("src/journeyman/sandbox/guest", "src/journeyman/sandbox/node"),
            products=(HOME / "rootfs", HOME / "build"),
            programs=("bwrap", "g++", "rg", *ENGINES[driver]),
        ),
        Step(
            "kernels",
            "Native kernels for this processor",
            "30 s",
            (
                (str(VENV_PYTHON), "-m", "journeyman.model.kernels.build"),
                (str(VENV_PYTHON), "-m", "journeyman.trainer.build"),
            ),
            inputs=("src/journeyman/model/kernels", "src/journeyman/trainer/native"),
            products=(HOME / "build",),
        ),
        Step(
            "model",
            "The model SmolLM2-135M-Instruct",
            "1 min",
            (journeyman("model", "fetch", "smollm2-135m"),),
            products=(model / "model.safetensors", model / "tokenizer.json"),
        ),
        *tasks_steps(driver, tasks),
    ]


def tasks_steps(driver: str, tasks: str) -> list[Step]:
    """The set that the tests need, and unless `tasks` is small the one that training needs."""
    small = Step(
        "tasks-small",
        "A dozen coding tasks for the tests",
        "1 min",
        (journeyman("tasks", "build", "--small", "--driver", driver),),
        inputs=("src/journeyman/tasks",),
        products=(HOME / "tasks" / "small" / "set.json",),
    )
    full = Step(
        "tasks",
        "The coding tasks for training",
        "20 min",
        (journeyman("tasks", "build", "--driver", driver),),
        # Not the whole package: the set that runs were measured on should not change with every
        # edit. `journeyman tasks build` makes it anew.
        inputs=("src/journeyman/tasks/projects.toml",),
        products=(HOME / "tasks" / "quickstart" / "set.json",),
    )
    return [small] if tasks == "small" else [small, full]


def _pinned(name: str) -> str:
    """The lock's requirement of one package, `name==version`."""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.strip()
    raise SystemExit(f"requirements.lock pins no {name}; run `make lock`")


def ensure_venv_module() -> None:
    """Debian ships Python without the part that makes virtual environments."""
    probe = subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True)
    if probe.returncode == 0:
        return
    line = "apt-get update && apt-get install -y python3-venv"
    if os.geteuid() != 0:
        raise SystemExit(f"This Python cannot make virtual environments. As root, run:\n  {line}")
    print("      Debian's python3-venv is missing: installing it", flush=True)
    subprocess.run(["bash", "-c", line], check=True, stdin=subprocess.DEVNULL)


def run_steps(steps: list[Step]) -> None:
    pending = {step.name for step in steps if not step.is_done()}
    started = time.monotonic()
    for number, step in enumerate(steps, 1):
        # A step before this one may have changed what this one builds on.
        if step.name not in pending and step.is_done():
            continue
        head = f"[{number}/{len(steps)}]"
        print(f"{head} {step.title} (about {step.expect} the first time)", flush=True)
        began = time.monotonic()
        for command in step.commands:
            run_command(step, command)
        step.mark_done()
        print(f"{head} done in {time.monotonic() - began:.0f} s", flush=True)
    if pending:
        print(f"Set-up complete in {time.monotonic() - started:.0f} s", flush=True)
    else:
        print("Set-up: everything is there", flush=True)


def run_command(step: Step, command: tuple[str, ...]) -> None:
    environment = {**os.environ, "JOURNEYMAN_HOME": str(HOME)}
    result = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    if result.returncode == 0:
        return
    print(f"\nSet-up stopped at: {step.title}", file=sys.stderr)
    print(f"  {' '.join(command)}\n  ended with status {result.returncode}", file=sys.stderr)
    if step.cure:
        print(f"  {step.cure}", file=sys.stderr)
    raise SystemExit(result.returncode if result.returncode > 0 else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", choices=["small", "full"], default="full")
    parser.add_argument("--driver", choices=["gvisor", "qemu", "bubblewrap"], default="gvisor")
    parser.add_argument("--only-packages", action="store_true", help="stop after .venv is ready")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 this script meets older ones
        raise SystemExit(f"Journeyman needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    steps = environment_steps()
    if not options.only_packages:
        steps += asset_steps(options.driver, options.tasks)
    ensure_venv_module()
    run_steps(steps)


if __name__ == "__main__":
    main()
