"""The file that says what a fleet consists of."""

import tomllib
from pathlib import Path

from pydantic import ValidationError, model_validator

from journeyman.sandbox.fleet.autoscale import ScaleSettings
from journeyman.sandbox.fleet.bootstrap import Bootstrap
from journeyman.sandbox.fleet.ec2 import Ec2Settings
from journeyman.sandbox.fleet.manager import FleetSettings
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.types.failure import UserError
from journeyman.types.value import Value


class BootstrapSettings(Value):
    """What `Bootstrap` needs beside a ticket."""

    control_url: str
    package: str
    driver: str = "gvisor"
    port: int = 8085

    def with_ticket(self, ticket: str) -> Bootstrap:
        return Bootstrap(ticket=ticket, **self.model_dump())


class FleetConfig(Value):
    """Every section may be left out. Without `ec2`, nodes join by themselves and nothing scales."""

    fleet: FleetSettings = FleetSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    scale: ScaleSettings | None = None
    ec2: Ec2Settings | None = None
    bootstrap: BootstrapSettings | None = None

    @model_validator(mode="after")
    def _whole(self) -> "FleetConfig":
        given = {name for name in ("scale", "ec2", "bootstrap") if getattr(self, name)}
        if given and len(given) < 3:
            raise ValueError(
                f"{' and '.join(sorted(given))} would have no effect: scale, ec2 and bootstrap "
                "belong together"
            )
        return self


def read_config(path: Path) -> FleetConfig:
    """Raises UserError naming the file and the key."""
    try:
        return FleetConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError(f"{path} is no configuration of a fleet: {error}") from None
