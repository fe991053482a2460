"""The same store on PostgreSQL. Skipped where Debian's `postgresql` package is not installed."""

import os
import pwd
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_worker import EPOCHS, PROMPTS, episode_of  # beside this file

from journeyman.store import Ledger, LedgerError, Store
from journeyman.types import InfraError

WORKER = Path(__file__).with_name("ledger_worker.py")
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server of our own on a Unix socket; yields the URL of its first database."""
    if not SERVERS:
        pytest.skip("PostgreSQL is not installed: apt-get install -y postgresql")
    pytest.importorskip("psycopg")
    # Not below pytest's directory: that one is closed to the user the server runs as.
    home = Path("/tmp") / f"journeyman-postgres-{os.getpid()}"
    home.mkdir(mode=0o700)
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        owner = pwd.getpwnam("postgres")
        os.chown(home, owner.pw_uid, owner.pw_gid)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    control = [*as_user, str(SERVERS[-1] / "pg_ctl"), "-D", str(home / "data"), "-s", "-w"]
    user = "postgres"
    initialise = [str(SERVERS[-1] / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", user]
    subprocess.run([*as_user, *initialise], check=True, capture_output=True, cwd=home)
    options = f"-c listen_addresses='' -c unix_socket_directories={home} -c fsync=off"
    start = [*control, "-o", options, "-l", str(home / "log"), "start"]
    subprocess.run(start, check=True, cwd=home)
    try:
        yield f"postgresql://{user}@/postgres?host={home}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd=home)
        subprocess.run(["rm", "-rf", str(home)], check=True)


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """An empty database for each test."""
    store = Store(server)
    name = f"test_{abs(hash(request.node.name)) % 10**9}"
    autocommit = store.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    store.close()
    return server.replace("/postgres?", f"/{name}?")


def test_killed_again_and_again(url: str, tmp_path: Path) -> None:
    dice = random.Random(3)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    weights, killed = "", 0
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, WORKER, tmp_path, url],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == "ready\n"
            if killed < 5:
                time.sleep(dice.uniform(0.02, 0.15))
                process.send_signal(signal.SIGKILL)
            weights = output.read().strip()
        if process.wait() == 0:
            break
        killed += 1
    assert killed >= 3
    store = Store(url)
    ledger = Ledger(store, "r")
    for epoch in range(EPOCHS):
        audit = ledger.audit(epoch, PROMPTS)
        assert audit.whole
        assert (audit.applied, audit.dropped) == (7, {"infra": 1})
    store.close()
    (tmp_path / "whole").mkdir()
    undisturbed = subprocess.run(
        [sys.executable, WORKER, tmp_path / "whole"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert undisturbed.stdout.split()[-1] == weights


def test_one_of_many_leases_a_prompt(url: str) -> None:
    """Eight threads lease the same prompt at the same moment."""
    stores = [Store(url) for _ in range(8)]
    ledgers = [Ledger(store, "r") for store in stores]
    together = threading.Barrier(len(ledgers))
    won: list[int] = []

    def lease(number: int) -> None:
        together.wait()
        try:
            ledgers[number].lease(0, [f"p{i}" for i in range(10)])
        except LedgerError:
            return
        won.append(number)

    threads = [threading.Thread(target=lease, args=(n,)) for n in range(len(ledgers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert ledgers[0].leased_prompts(0) == [f"p{i}" for i in range(10)]
    for store in stores:
        store.close()


def test_values_come_back_equal(url: str) -> None:
    store = Store(url)
    ledger = Ledger(store, "r")
    (lease,) = ledger.lease(0, ["p"])
    ledger.running(lease)
    episode = episode_of(lease, "one")
    ledger.graded(lease, [episode])
    assert store.episode(episode.id) == episode
    assert ledger.recover(None).graded[0].episodes == (episode,)
    store.save_metrics("r", 1, {"reward": 0.1})
    store.save_metrics("r", 1, {"reward": 0.2})
    assert store.metric("r", "reward") == [(1, 0.2)]
    store.close()


def test_a_server_that_is_gone_is_an_infra_failure() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(InfraError, match="cannot be reached") as refused:
        Store("postgresql://someone:secret@127.0.0.1:1/nowhere")
    assert "secret" not in str(refused.value)
