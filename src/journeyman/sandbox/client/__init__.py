"""The client of the sandbox service: what agents, verifiers and task builders import."""

from journeyman.sandbox.client.client import SandboxClient
from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.client.template import (
    AddTar,
    Copy,
    Layer,
    Run,
    SetEnv,
    TemplateSpec,
    Workdir,
)

__all__ = [
    "AddTar",
    "Copy",
    "Layer",
    "RemoteSandbox",
    "Run",
    "SandboxClient",
    "SetEnv",
    "TemplateSpec",
    "Workdir",
]
