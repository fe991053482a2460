"""The script that turns a bare machine into a node."""

from importlib.resources import files
from shlex import quote

from pydantic import Field

from journeyman.types.failure import UserError
from journeyman.types.value import Value

_MOST_BYTES = 16 << 10
"""EC2 takes no more user data than this."""


class Bootstrap(Value):
    """What a new host has to know. User data can be read by whoever may describe the instance, so
    the only secret in it is a ticket that is good for one registration and a short time."""

    control_url: str = Field(pattern=r"^https?://[\w.:/\[\]-]+$")
    """Where the fleet's manager answers."""
    ticket: str = Field(min_length=16)
    package: str = Field(min_length=1)
    """What pip installs: a version of the package, or the address of a wheel."""
    driver: str = Field(default="gvisor", pattern=r"^[a-z]+$")
    port: int = Field(default=8085, gt=0, lt=65536)

    def script(self) -> str:
        """For cloud-init: run once as root on Debian 12, without a terminal. Every value is quoted.

        Raises UserError when it would be too long.
        """
        settings = {
            "JOURNEYMAN_CONTROL": self.control_url,
            "JOURNEYMAN_TICKET": self.ticket,
            "JOURNEYMAN_PACKAGE": self.package,
            "JOURNEYMAN_DRIVER": self.driver,
            "JOURNEYMAN_PORT": str(self.port),
        }
        lines = "\n".join(f"{name}={quote(value)}" for name, value in settings.items())
        template = (files(__package__) / "bootstrap.sh").read_text(encoding="utf-8")
        script = template.replace("# SETTINGS\n", lines + "\n")
        if len(script.encode()) > _MOST_BYTES:
            raise UserError(
                f"the bootstrap script has {len(script.encode())} bytes, over {_MOST_BYTES}",
                "Give a shorter package address.",
            )
        return script
