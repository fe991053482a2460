"""Choosing a driver by starting a sandbox with it."""

import asyncio
import logging
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
_KVM = Path("/dev/kvm")
log = logging.getLogger(__name__)


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
    """A driver that has started a sandbox here. Raises UserError when there is none.

    `auto` is the strongest isolation that works at speed: QEMU with KVM, gVisor, QEMU emulated.
    Bubblewrap is taken by name only, never silently.
    """
    if name == "auto":
        return await _choose()
    if name not in DRIVERS:
        raise UserError(
            f"no sandbox driver is called {name!r}", f"Choose auto, {', '.join(DRIVERS)}."
        )
    driver: Driver = DRIVERS[name]()
    await _start(driver, "Run as root: make setup.")
    return driver


async def _choose() -> Driver:
    machines = QemuDriver()
    if await asyncio.to_thread(_KVM.exists):
        try:
            await machines.probe()
            if machines.accelerator == "kvm":
                await probe(machines)
                return machines
        except JourneymanError as error:
            log.info("no virtual machines on KVM here: %s", error.cause)
    gvisor = GvisorDriver()
    try:
        await _start(
            gvisor, "Run as root: make setup. Or ask for the weaker `--driver bubblewrap` by name."
        )
    except UserError as error:
        try:
            await probe(machines)
        except JourneymanError:
            raise error from None
        log.warning("%s; emulating machines with QEMU, which is slow", error.cause)
        return machines
    return gvisor


async def _start(driver: Driver, cure: str) -> None:
    """Raises UserError."""
    try:
        await probe(driver)
    except UserError:
        raise
    except JourneymanError as error:
        raise UserError(
            f"the {driver.name} driver cannot start a sandbox here: {error.cause}", cure
        ) from error
