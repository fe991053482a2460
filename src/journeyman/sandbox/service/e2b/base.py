"""The template behind the name `base`."""

from journeyman.sandbox.client.template import Run, TemplateSpec

BASE = TemplateSpec(
    layers=(Run(command="useradd --create-home --shell /bin/bash --uid 1000 user"),)
)
"""Debian with Python, git and ripgrep, and the user that the SDK's commands run as."""
