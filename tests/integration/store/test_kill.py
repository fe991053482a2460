"""Kill -9 of the process that writes the ledger: every prompt is still used exactly once."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeyman.store import Ledger, Store

WORKER = Path(__file__).with_name("ledger_worker.py")

KILLED_AT_EVERY_STATEMENT = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
sys.path.insert(0, sys.argv[1])
import ledger_worker

root, stride = Path(sys.argv[2]), int(sys.argv[3])

def in_child(directory, die_at):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0
    def tick(*_):
        nonlocal count
        count += 1
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    event.listen(Engine, "after_cursor_execute", tick)
    event.listen(Engine, "commit", tick)  # right before it is made
    (directory / "weights").write_text(ledger_worker.run(directory))
    os._exit(0)

def weights_after(name, die_at):
    directory = root / name
    directory.mkdir()
    died = in_child(directory, die_at) == signal.SIGKILL
    if died:
        assert in_child(directory, 0) == 0
    return died, (directory / "weights").read_text()

_, expected = weights_after("whole", 0)
die_at, killed = 1, 0
while True:
    died, weights = weights_after(str(die_at), die_at)
    assert weights == expected, f"killed at statement {die_at}: other weights"
    if not died:
        break
    killed += 1
    die_at += stride
print(killed)
"""


def audit_is_whole(directory: Path) -> None:
    from ledger_worker import EPOCHS, PROMPTS  # beside this file

    ledger = Ledger(Store(f"sqlite:///{directory}/store.db"), "r")
    for epoch in range(EPOCHS):
        audit = ledger.audit(epoch, PROMPTS)
        assert audit.whole
        assert (audit.applied, audit.dropped) == (7, {"infra": 1})


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory in memory: what a killed process wrote is in the kernel's hands either way."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=memory) as directory:
        yield Path(directory)


def test_killed_at_every_statement(in_memory: Path) -> None:
    """Each kill lands between two statements or right before a commit; then one restart."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_STATEMENT, WORKER.parent, in_memory, "11"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
    audit_is_whole(in_memory / "89")


def test_killed_from_outside_again_and_again(tmp_path: Path) -> None:
    dice = random.Random(7)
    killed = 0
    for _ in range(60):
        process = subprocess.Popen(
            [sys.executable, WORKER, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == "ready\n"
            if killed < 5:
                time.sleep(dice.uniform(0.01, 0.08))
                process.send_signal(signal.SIGKILL)
            weights = output.read().strip()
        if process.wait() == 0:
            break
        killed += 1
    assert killed >= 3
    audit_is_whole(tmp_path)
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = subprocess.run(
        [sys.executable, WORKER, whole],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert undisturbed.stdout.split()[-1] == weights
