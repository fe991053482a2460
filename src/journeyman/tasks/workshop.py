"""Sandboxes for building tasks: many test runs of one project in one sandbox.

What is found out here only narrows the choice. Whether a task is good is decided afterwards, in
fresh sandboxes, by the verifier that episodes meet.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from journeyman.sandbox.client import (
    AddTar,
    RemoteSandbox,
    SandboxClient,
    SetEnv,
    TemplateSpec,
    Workdir,
)
from journeyman.tasks.environment import ENVIRONMENT_VARIABLES, build_template, plain_tar
from journeyman.tasks.grading import HARNESS_PATH, verifier_template
from journeyman.types import Environment, SandboxError

APP = "/app"
_REQUESTS, _RESULTS = "/tmp/requests.json", "/root/results.jsonl"


async def project_environment(archive: bytes, sandboxes: SandboxClient) -> Environment:
    """The environment that a generated task's Dockerfile describes, without its fault."""
    layers = (
        *(SetEnv(name=name, value=value) for name, value in ENVIRONMENT_VARIABLES.items()),
        Workdir(path=APP),
        AddTar(path=APP, data=plain_tar(archive)),
    )
    template = await build_template(TemplateSpec(layers=layers), sandboxes)
    return Environment(template=template, workdir=APP)


@asynccontextmanager
async def workshop(environment: Environment, sandboxes: SandboxClient) -> AsyncIterator["Workshop"]:
    """A sandbox with the project and the waiting test process, closed at the end."""
    template = await verifier_template(environment, sandboxes, compiled=True)
    sandbox = await sandboxes.create(environment.model_copy(update={"template": template}))
    try:
        yield Workshop(sandbox)
    finally:
        await sandbox.close()


class Workshop:
    """Runs requests of `guest/harness.py` one after the other."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox

    async def run(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One result per request, in order. Raises SandboxError if the harness itself failed."""
        data = json.dumps([{"root": APP, **request} for request in requests]).encode()
        await self._sandbox.write_file(_REQUESTS, data)
        patience_s = 30.0 + sum(float(request["timeout_s"]) for request in requests)
        done = await self._sandbox.exec(
            ["python3", "-I", "-S", HARNESS_PATH, "batch", _REQUESTS, _RESULTS],
            timeout_s=patience_s,
        )
        if done.exit_code != 0:
            raise SandboxError(f"the test harness ended with {done.exit_code}: {done.text[-2000:]}")
        lines = (await self._sandbox.read_file(_RESULTS)).decode("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    async def modules_elsewhere(self, names: Sequence[str]) -> list[str]:
        """Paths outside the project from which these modules could be imported or read."""
        wanted: list[str] = []
        for name in names:
            wanted += ["-o", "-name", name, "-o", "-name", f"{name}.py"]
        command = ["find", "/usr", "/opt", "/root", "/home", "(", *wanted[1:], ")", "-path"]
        done = await self._sandbox.exec([*command, "*python*"], timeout_s=60)
        return done.stdout.decode("utf-8", "replace").split()
