"""Choosing a driver by starting a sandbox with it."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.bubblewrap import BubblewrapDriver
from journeyman.sandbox.node.driver import Driver, Limits, MachineSpec
from journeyman.sandbox.node.gvisor import GvisorDriver
from journeyman.sandbox.node.link import GuestIdentity
from journeyman.sandbox.node.qemu import QemuDriver
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.types.failure import JourneymanError, UserError

DRIVERS: dict[str, type[GvisorDriver] | type[QemuDriver] | type[BubblewrapDriver]] = {
    "gvisor": GvisorDriver,
    "qemu": QemuDriver,
    "bubblewrap": BubblewrapDriver,
}
_PROBE_TIMEOUT_S = 60.0


async def probe(driver: Driver) -> None:
    """Start a sandbox, speak to it, end it. Raises JourneymanError when that fails."""
    await driver.probe()
    rootfs = require_rootfs()
    agent = install_agent(rootfs, build_agent())
    directory = Path(tempfile.mkdtemp(prefix="journeyman-probe-"))
    spec = MachineSpec(directory.name, directory, rootfs, agent, Limits())
    try:
        machine = await driver.boot(spec)
        try:
            await machine.link.begin_epoch(1, GuestIdentity(hostname="probe"), _PROBE_TIMEOUT_S)
        finally:
            driver.kill(machine)
    finally:
        await driver.collect([spec])
        await asyncio.to_thread(shutil.rmtree, directory)


async def choose_driver(name: str) -> Driver:
    """`auto` is gvisor or an error: isolation is weakened by name only, never silently."""
    if name not in (*DRIVERS, "auto"):
        raise UserError(
            f"no sandbox driver is called {name!r}", f"Choose auto, {' or '.join(DRIVERS)}."
        )
    driver: Driver = DRIVERS["gvisor" if name == "auto" else name]()
    try:
        await probe(driver)
    except UserError:
        raise
    except JourneymanError as error:
        weaker = " Or ask for the weaker `--driver bubblewrap` by name." if name == "auto" else ""
        raise UserError(
            f"the {driver.name} driver cannot start a sandbox here: {error.cause}",
            f"Run as root: make setup.{weaker}",
        ) from error
    return driver
