"""The command line as a person meets it: help, versions, errors, exit statuses."""

import errno
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import typer

from journeyman import __version__
from journeyman.cli import main as main_module
from journeyman.types import EngineError, UserError


def run_main(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main_module.main(args)
    return int(ended.value.code or 0)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `journeyman doctor` raise."""

    def install(error: BaseException) -> None:
        app = typer.Typer()
        app.callback()(lambda: None)

        @app.command("doctor")
        def doctor() -> None:
            raise error

        loaded = typer.main.get_command(app).commands["doctor"]
        monkeypatch.setattr(main_module, "load_command", lambda name: loaded)
        monkeypatch.setattr(main_module, "COMMANDS", ("main", "doctor"))
        monkeypatch.setattr(main_module, "_source", lambda name: main_module._HERE / "main.py")

    return install


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from journeyman.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'transformers', 'sqlalchemy', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - begun < 10


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("--version") == 0
    assert capsys.readouterr().out == f"journeyman {__version__}\n"


def test_unknown_command_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("trian") == 2
    assert "trian" in capsys.readouterr().err


def test_user_error_names_cause_and_cure_without_trace(command, capsys) -> None:
    command(UserError("no model in /m", "run: journeyman model fetch smollm2-135m"))
    assert run_main("doctor") == 2
    told = capsys.readouterr()
    assert told.err == "error: no model in /m\n  run: journeyman model fetch smollm2-135m\n"
    assert told.out == ""


def test_traceback_on_request(command, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JOURNEYMAN_TRACEBACK", "0")  # restored afterwards
    command(UserError("no model", "fetch it"))
    assert run_main("--traceback", "doctor") == 2
    assert "Traceback" in capsys.readouterr().err


def test_infra_error_is_status_1(command, capsys) -> None:
    command(EngineError("the engine died", "see the log"))
    assert run_main("doctor") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_shows_its_trace(command, capsys) -> None:
    command(ZeroDivisionError("oops"))
    assert run_main("doctor") == 1
    assert "Traceback" in capsys.readouterr().err


def test_full_disk_is_said_plainly(command, capsys) -> None:
    command(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    assert run_main("doctor") == 1
    told = capsys.readouterr().err
    assert told.startswith("error: the disk is full (while writing /data/x)\n")
    assert "Traceback" not in told


def test_ctrl_c_is_130(command) -> None:
    command(KeyboardInterrupt())
    assert run_main("doctor") == 130


def test_errors_of_concurrent_tasks(command, capsys) -> None:
    command(BaseExceptionGroup("tasks", [ExceptionGroup("x", [UserError("bad", "mend")])]))
    assert run_main("doctor") == 2
    assert capsys.readouterr().err == "error: bad\n  mend\n"


def test_a_bug_among_concurrent_errors_is_not_hidden(command, capsys) -> None:
    command(ExceptionGroup("tasks", [UserError("bad", "mend"), ZeroDivisionError("oops")]))
    assert run_main("doctor") == 1
    assert "ZeroDivisionError: oops" in capsys.readouterr().err


def test_every_command_loads_and_has_a_help_line() -> None:
    group = typer.main.get_command(main_module.app)
    assert set(group.list_commands(None)) == set(main_module.COMMANDS)
    for name in main_module.COMMANDS:
        assert main_module._first_line(main_module._source(name))
        assert main_module.load_command(name).name == name
