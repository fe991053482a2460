"""Where the token of a service lies: beside its socket, readable by its owner only."""

from pathlib import Path


def token_path(socket: Path) -> Path:
    return socket.with_name(socket.name + ".token")
