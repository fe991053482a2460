"""Journeyman: coding agents trained on the server, tools and sandboxes they work in."""

__version__ = "0.1.0"
