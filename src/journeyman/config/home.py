"""Where models, task sets, templates and sandbox state live on this machine."""

import os
from pathlib import Path


def home_dir() -> Path:
    """`$JOURNEYMAN_HOME`, or `~/.local/share/journeyman`. Not created here."""
    configured = os.environ.get("JOURNEYMAN_HOME")
    return Path(configured) if configured else Path.home() / ".local" / "share" / "journeyman"
