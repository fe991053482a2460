"""The one console for everything a person watches: stderr, so that stdout holds results only."""

from functools import cache

from rich.console import Console


@cache
def console() -> Console:
    """Shared by progress bars and logs: lines logged during a bar appear above it."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
