"""Runs tests of a project inside a sandbox and says, test by test, what happened.

Standard library and pytest only: this file is copied into sandboxes. Two processes take part:
- the supervisor (root) never imports the project. It opens the report channel, starts the child,
  ends it, and alone writes the verdict where the child cannot.
- the child (nobody) runs pytest with our plugin. It reports exactly once, over a pipe opened
  before the project's code is imported, under a nonce of this run.

A supervisor that has imported pytest beforehand can wait on a socket (`serve`): the child is then
a fork of it, which saves the start of Python and pytest in every verification.

  harness.py serve            wait on the socket
  harness.py verify DIRECTORY judge the tree by DIRECTORY/expected.json, write the verdict
  harness.py batch IN OUT     run the JSON list of requests in IN, write one JSON line each to OUT
"""

# pytest is imported late: not at all by the process that only asks the waiting one.
# ruff: noqa: PLC0415

import contextlib
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import resource
import secrets
import select
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

SOCKET = "/run/journeyman-tests.sock"
VERDICT_DIRECTORY = "/logs/verifier"
NOBODY = 65534
MEMORY_BYTES = 768 << 20
FILE_BYTES = 64 << 20
REPORT_BYTES = 32 << 20
OUTPUT_BYTES = 4000
JSON = dict[str, Any]
WATCHED = ("_pytest", "pytest", "pluggy", "builtins")
"""Modules whose functions must be the same after the tests as before."""


# --- the child ---------------------------------------------------------------------------------


class Reporter:
    """The pytest plugin: keeps the wanted tests, notes the outcome of each."""

    def __init__(self, request: JSON) -> None:
        self.wanted = set(request["tests"])
        self.root = os.path.join(os.path.realpath(request["root"]), "")
        self.trace = request.get("trace", False)
        self.skip = tuple(request.get("skip", ()))
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        self.functions: dict[tuple[str, int], int] = {}
        self.calls: dict[str, set[int]] = {}
        self._current: set[int] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [
            item
            for item in items
            if (not self.wanted or item.nodeid in self.wanted)
            and not item.nodeid.startswith(self.skip or ("\0",))
        ]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.errors[report.nodeid] = explanation(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid
        self.durations[test] = self.durations.get(test, 0.0) + report.duration
        subtest = type(report).__name__ == "SubtestReport"
        if report.failed:
            self.outcomes[test] = "failed"
            self.errors.setdefault(test, explanation(report))
        elif self.outcomes.get(test) == "failed" or subtest:
            return
        elif report.skipped:
            self.outcomes[test] = "skipped"
        elif report.when == "call":
            self.outcomes[test] = "xpassed" if hasattr(report, "wasxfail") else "passed"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.trace:
            self._current = self.calls.setdefault(nodeid, set())
            sys.settrace(self._note_call)

    def pytest_runtest_logfinish(self) -> None:
        if self.trace:
            sys.settrace(None)

    def _note_call(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.root):
            function = (code.co_filename[len(self.root) :], code.co_firstlineno)
            self._current.add(self.functions.setdefault(function, len(self.functions)))


def explanation(report: Any) -> str:
    """The lines in which pytest says what is wrong (it marks them with E)."""
    text = getattr(report, "longreprtext", "") or ""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return "\n".join(lines[:12])[:2000]


def fingerprint() -> dict[str, tuple[Any, Any]]:
    """The functions and classes of pytest and of the built-ins, by name."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in WATCHED or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
                found[f"{name}.{attribute}"] = (value, getattr(value, "__code__", None))
            elif isinstance(value, type):
                found[f"{name}.{attribute}"] = (value, None)
                if value.__module__.split(".")[0] in WATCHED[:3]:
                    found[f"{name}.{attribute}.*"] = (overriding(value), None)
                    for method, body in list(vars(value).items()):
                        code = getattr(body, "__code__", None)
                        if code is not None or isinstance(body, property | classmethod):
                            found[f"{name}.{attribute}.{method}"] = (body, code)
    found["os._exit"] = (os._exit, None)
    found["sys.exit"] = (sys.exit, None)
    return found


def overriding(kind: type) -> tuple[str, ...]:
    """Names on a class that hide those of its bases: setting one more changes what it does.
    Marks that pytest itself leaves on classes begin with its name."""
    return tuple(
        sorted(
            name
            for name in vars(kind)
            if any(name in vars(base) for base in kind.__mro__[1:])
            and not name.startswith("_pytest")
        )
    )


def patched(before: dict[str, tuple[Any, Any]]) -> list[str]:
    """Names of what differs from `before`."""
    now = fingerprint()
    gone = (None, None)
    return sorted(
        name
        for name, (value, code) in before.items()
        if not _same(now.get(name, gone), (value, code))
    )


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """The very same objects, or equal lists of names."""
    if isinstance(one[0], tuple):
        return one == other
    return one[0] is other[0] and one[1] is other[1]


def run_child(request: JSON, nonce: str, channel: int) -> NoReturn:
    """Never returns. Writes one report to `channel`, then exits with pytest's own status."""
    leave, write = os._exit, os.write
    os.chdir(request["root"])
    sys.dont_write_bytecode = True
    environment = {"HOME": "/tmp", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "LANG": "C.UTF-8"}
    os.environ.update(environment)
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.path[:0] = [request["root"]]
    limit_resources(request["cpu_s"])
    become_nobody()
    import pytest

    reporter = Reporter(request)
    before = fingerprint()
    files = sorted({test.split("::")[0] for test in request["tests"]}) or request["files"]
    arguments = ["-q", "--color=no", "--tb=short", "-rN", "-p", "no:cacheprovider"]
    arguments += [f"--rootdir={request['root']}", "--continue-on-collection-errors"]
    arguments += [*request.get("arguments", ()), *files]
    status = int(pytest.main(arguments, plugins=[reporter]))
    report = {
        "status": status,
        "outcomes": reporter.outcomes,
        "durations": reporter.durations,
        "errors": reporter.errors,
        "functions": list(reporter.functions),
        "calls": {test: sorted(calls) for test, calls in reporter.calls.items()},
        "patched": patched(before),
    }
    data = memoryview(f"{nonce} {json.dumps(report)}\n".encode())
    while data:
        data = data[write(channel, data) :]
    leave(status)


def limit_resources(cpu_s: int) -> None:
    """Processor time says the same on a busy machine and on an idle one."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_nobody() -> None:
    """Give up root, so that project code cannot write verdicts or reach the supervisor.

    Where the sandbox maps one user only (a development driver) this is not possible.
    """
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except (OSError, OverflowError):
            return


# --- the supervisor ----------------------------------------------------------------------------


def supervise(request: JSON) -> JSON:
    """Run one request in a forked child. Returns the report, or why there is none.

    Request: root, tests (node ids, or empty for all tests in `files`), files, trace, cpu_s
    (processor time), timeout_s (time on the clock), overlay ({relative path: text} written before
    the run and put back after it).
    """
    with overlaid(request["root"], request.get("overlay", {})):
        return _supervise(request)


def _supervise(request: JSON) -> JSON:
    nonce = secrets.token_hex(16)
    reader, writer = os.pipe()
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                _enter_child(output, reader, writer)
                run_child(request, nonce, 3)
            except BaseException as error:
                os.write(2, f"harness: {error!r}\n".encode())
            finally:
                os._exit(70)
        os.close(writer)
        data, timed_out = read_until(reader, started + request["timeout_s"])
        os.close(reader)
        exit_code = end(pid, 0.0 if timed_out else started + request["timeout_s"])
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
        tail = output.read().decode("utf-8", "replace")
    timed_out = timed_out or exit_code == -signal.SIGXCPU
    result: JSON = {"timed_out": timed_out, "exit": exit_code, "output": tail, "report": None}
    result["seconds"] = time.monotonic() - started
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) == 1 and lines[0].startswith(f"{nonce} "):
        result["report"] = json.loads(lines[0][len(nonce) + 1 :])
    return result


def _enter_child(output: BinaryIO, reader: int, writer: int) -> None:
    """Only stdin (empty), stdout, stderr and the report channel (3) stay open."""
    os.setsid()
    os.close(reader)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    if writer != 3:
        os.dup2(writer, 3)
    os.set_inheritable(3, False)
    os.closerange(4, 4096)


@contextlib.contextmanager
def overlaid(root: str, files: dict[str, str]) -> Iterator[None]:
    kept = {}
    for name, text in files.items():
        path = os.path.join(root, name)
        with open(path, "rb") as file:
            kept[path] = file.read()
        with open(path, "wb") as file:
            file.write(text.encode("utf-8"))
    try:
        yield
    finally:
        for path, data in kept.items():
            with open(path, "wb") as file:
                file.write(data)


def read_until(reader: int, deadline: float) -> tuple[bytes, bool]:
    """What is said up to the end of a line; whether the deadline came first."""
    data = bytearray()
    while len(data) < REPORT_BYTES and not data.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return bytes(data), True
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    return bytes(data), False


def end(pid: int, deadline: float) -> int | None:
    """Wait for the child until the deadline, then end it and all that it started."""
    status = None
    while status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() >= deadline:
            break
        else:
            time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    kill_nobody()
    return status


def kill_nobody() -> None:
    """End every process of the child's user: one that left its process group too."""
    if os.geteuid() != 0:
        return
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            if os.geteuid() != 0:
                os.kill(-1, signal.SIGKILL)
        except OSError:
            pass  # there was nobody left
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


# --- verdicts ----------------------------------------------------------------------------------


def judge(result: JSON, expected: JSON) -> tuple[int, list[str], list[str]]:
    """(reward, reasons, flags): reward 1 only if exactly the expected tests ran and passed."""
    report = result["report"]
    if result["timed_out"]:
        return 0, ["the tests ran out of time"], []
    if report is None:
        return 0, [f"no report; exit status {result['exit']}"], ["left before the report"]
    flags = [f"patched {name}" for name in report["patched"] if name not in expected["patched"]]
    outcomes = report["outcomes"]
    reasons = [
        f"{test}: {outcomes.get(test, 'not run')}"
        for test in expected["tests"]
        if outcomes.get(test) != "passed"
    ]
    reasons += [f"not expected: {test}" for test in outcomes if test not in expected["tests"]]
    if result["exit"] != report["status"] or (not reasons and report["status"] != 0):
        reasons.append(f"exit status {result['exit']}, reported {report['status']}")
    return int(not reasons and not flags), reasons, flags


def verify(directory: str) -> None:
    """Judge the tree and write the verdict; the reward file last, in one step."""
    with open(os.path.join(directory, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    os.makedirs(VERDICT_DIRECTORY, mode=0o700, exist_ok=True)
    os.chmod(VERDICT_DIRECTORY, 0o700)
    tampered = restore(expected["root"], expected["protected"], directory)
    result = run_request(expected)
    reward, reasons, flags = judge(result, expected)
    if tampered:
        reward, flags = 0, [*flags, *(f"edited {name}" for name in tampered)]
    details = {"reasons": reasons, "flags": flags, "result": result}
    write_whole(f"{VERDICT_DIRECTORY}/report.json", json.dumps(details))
    write_whole(f"{VERDICT_DIRECTORY}/reward.txt", f"{reward}\n")


def restore(root: str, protected: dict[str, str], directory: str) -> list[str]:
    """Put tests and their configuration back; returns the names of those that had changed.

    In a fresh sandbox they are as they were. Where the agent's own container is judged, they
    may not be, and the archive with the originals lies in `directory`.
    """
    tampered = []
    for name, digest in protected.items():
        try:
            with open(os.path.join(root, name), "rb") as file:
                same = hashlib.sha256(file.read()).hexdigest() == digest
        except OSError:
            same = False
        if not same:
            tampered.append(name)
    archive = os.path.join(directory, "pristine.tar.gz")
    if tampered and os.path.exists(archive):
        import tarfile

        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
    return tampered


def write_whole(path: str, text: str) -> None:
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


# --- the waiting process -----------------------------------------------------------------------


def own_digest() -> str:
    with open(__file__, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def import_pytest() -> None:
    import _pytest
    import pytest  # noqa: F401
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    for module in pkgutil.iter_modules(_pytest.__path__):
        if module.name in ("subtests", "unraisableexception", "threadexception"):
            importlib.import_module(f"_pytest.{module.name}")
    for name in ("doctest", "unittest.mock", "decimal", "fractions", "string", "pickle"):
        importlib.import_module(name)


def serve() -> NoReturn:
    """Wait for requests: one JSON line in, one JSON line out."""
    import_pytest()
    digest = own_digest()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        os.umask(0o077)
        server.bind(SOCKET)
        os.umask(0o022)
        server.listen(8)
        gc.collect()
        gc.freeze()
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as stream:
                request = json.loads(stream.readline())
                if request.pop("harness") == digest:
                    stream.write(json.dumps(supervise(request)).encode())
                stream.write(b"\n")


def run_request(request: JSON) -> JSON:
    """Ask the waiting process if there is one with this very code, else run it here."""
    with contextlib.suppress(FileNotFoundError, ConnectionError):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(SOCKET)
            with client.makefile("rwb") as stream:
                stream.write(json.dumps({**request, "harness": own_digest()}).encode() + b"\n")
                stream.flush()
                answer = stream.readline().strip()
        if answer:
            return dict(json.loads(answer))
    if "site" not in sys.modules:
        importlib.import_module("site").main()
    import_pytest()
    return supervise(request)


def batch(source: str, target: str) -> None:
    with open(source, encoding="utf-8") as file:
        requests = json.load(file)
    with open(target, "w", encoding="utf-8") as out:
        for request in requests:
            out.write(json.dumps(run_request(request)) + "\n")
            out.flush()


if __name__ == "__main__":
    commands: dict[str, Any] = {"serve": serve, "verify": verify, "batch": batch}
    commands[sys.argv[1]](*sys.argv[2:])
