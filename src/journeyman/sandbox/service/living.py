"""One sandbox of this service: its record, its machine while it runs, and who is using it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from journeyman.sandbox.node.driver import Driver, Machine, MachineSpec
from journeyman.sandbox.node.link import GuestIdentity, GuestLink
from journeyman.sandbox.node.processes import ProcessTable
from journeyman.sandbox.node.snapshots import SnapshotReader, write_snapshot
from journeyman.sandbox.service.record import SandboxRecord
from journeyman.sandbox.service.shared_lock import SharedLock
from journeyman.sandbox.wire.api import SandboxInfo
from journeyman.types.failure import SandboxError, SandboxExhausted, SandboxGone

_EPOCH_TIMEOUT_S = 30.0
SNAPSHOT_PREFIX = "s-"
"""Ids of templates that were kept of a sandbox, with its processes."""


def fresh_identity(sandbox_id: str) -> GuestIdentity:
    """Host name, machine id and boot id of a new life."""
    boot = os.urandom(16).hex()
    parts = (boot[:8], boot[8:12], boot[12:16], boot[16:20], boot[20:])
    return GuestIdentity(sandbox_id, os.urandom(16).hex(), "-".join(parts))


class LivingSandbox:
    """Every call goes through `guest()`, which resumes a hibernated sandbox by itself."""

    def __init__(
        self, record: SandboxRecord, directory: Path, driver: Driver, reader: SnapshotReader
    ) -> None:
        self.record = record
        self.directory = directory
        self.machine: Machine | None = None
        self.ended = ""
        """Why it is gone; empty while it is not."""
        self.exhausted: list[str] = []
        self.processes = ProcessTable()
        """What runs on after the call that started it."""
        self.lock = SharedLock()
        self.saving = asyncio.Lock()
        """One snapshot at a time."""
        self.expires_at = time.monotonic() + record.lease_s
        self._driver = driver
        self._reader = reader

    @property
    def spec(self) -> MachineSpec:
        return MachineSpec(
            self.record.id,
            self.directory,
            Path(self.record.rootfs),
            self.record.agent,
            self.record.limits,
            self.record.stands_still,
        )

    @property
    def snapshot_directory(self) -> Path:
        return self.directory / "snapshots" / self.record.snapshot

    def info(self) -> SandboxInfo:
        record = self.record
        return SandboxInfo(
            id=record.id,
            state=record.state,
            template=record.template,
            parent=record.parent,
            created_at=record.created_at,
            lease_s=record.lease_s,
            limits_enforced=self._driver.enforced,
        )

    def change(self, **changes: object) -> None:
        """Record on disk first, then here."""
        record = self.record.model_copy(update=changes)
        record.write(self.directory)
        self.record = record

    def renew(self) -> None:
        self.expires_at = time.monotonic() + self.record.lease_s

    @property
    def is_dead(self) -> bool:
        """Its engine ended though nobody asked for that."""
        return self.machine is not None and self.machine.link.gone.is_set()

    def gone_error(self) -> SandboxGone:
        """Says why; the policy's doing where what ran inside used up a limit."""
        if self.is_dead and not self.exhausted:
            self.exhausted = self._driver.exhausted(self.spec)
        link = self.machine.link if self.machine else None
        tampered = link is not None and link.tampered
        kind = SandboxExhausted if self.exhausted or tampered else SandboxGone
        cause = self.ended or (link.cause if link else "") or "its engine ended by itself"
        if tampered:
            cause += "; what ran inside tampered with its agent"
        if self.exhausted:
            cause += f", out of {' and '.join(self.exhausted)}"
        return kind(f"sandbox {self.record.id} is gone: {cause}", "Create a new one.")

    @asynccontextmanager
    async def guest(self) -> AsyncIterator[GuestLink]:
        """The link to a running guest, kept running until the block is left."""
        while True:
            if self.ended:
                raise self.gone_error()
            if self.record.state == "hibernated":
                await self.resume()
            async with self.lock.shared():
                if self.machine is None and not self.ended:
                    continue  # hibernated in between
                if self.machine is None:
                    raise self.gone_error()
                self.renew()
                try:
                    yield self.machine.link
                except SandboxGone:
                    raise self.gone_error() from None
                finally:
                    self.renew()
                return

    async def start(self, snapshot: Path) -> None:
        """First life: restore `snapshot` and give it an identity of its own."""
        machine = await self._restore(snapshot, fresh_identity(self.record.id))
        if self.record.parent or self.record.template.startswith(SNAPSHOT_PREFIX):
            await self.processes.adopt(machine.link)

    async def _restore(self, snapshot: Path, identity: GuestIdentity) -> Machine:
        driver = self._driver
        manifest = await self._reader.check(snapshot, driver.name, driver.fingerprint)
        machine = await driver.restore(self.spec, snapshot, manifest.next_number)
        try:
            self.change(epoch=self.record.epoch + 1)
            await machine.link.begin_epoch(self.record.epoch, identity, _EPOCH_TIMEOUT_S)
        except BaseException:
            driver.kill(machine)
            raise
        if self.ended:  # closed while it was starting
            driver.kill(machine)
            raise self.gone_error()
        self.machine = machine
        return machine

    def _running(self) -> Machine:
        if self.machine is None:
            raise self.gone_error()
        return self.machine

    async def save(self, target: Path, durable: bool = True) -> None:
        """Snapshot a running sandbox to `target`; it runs on. The caller holds the lock or
        accepts that commands in flight are in the snapshot too."""
        machine = self._running()
        link = machine.link
        with link.awake():
            await link.quiesce()
            try:
                await write_snapshot(
                    target,
                    lambda into: self._driver.snapshot(machine, self.spec, into),
                    driver=self._driver.name,
                    fingerprint=self._driver.fingerprint,
                    next_number=link.next_number,
                    durable=durable,
                )
            finally:
                if not link.gone.is_set():
                    await link.begin_epoch(self.record.epoch, GuestIdentity(), _EPOCH_TIMEOUT_S)
                    await self.processes.grant_again()

    async def hibernate(self) -> None:
        """Waits for running calls. Fails without harm: the sandbox then runs on."""
        if not self._driver.snapshots_memory:
            raise SandboxError(
                f"the {self._driver.name} driver cannot hibernate: it cannot save memory",
                "Use the gvisor driver.",
            )
        async with self.lock.exclusive():
            if self.record.state == "hibernated":
                return
            name = f"epoch-{self.record.epoch}"
            await self.save(self.directory / "snapshots" / name)
            machine = self._running()
            self.machine = None
            self.processes.detach()
            self.change(state="hibernated", snapshot=name)
            self._driver.kill(machine)
            await self._driver.collect([self.spec])

    async def resume(self) -> None:
        """The snapshot goes only once the sandbox runs: a failed resume can be tried again."""
        async with self.lock.exclusive():
            if self.ended:
                raise self.gone_error()
            if self.record.state != "hibernated":
                return
            snapshot = self.snapshot_directory
            try:
                machine = await self._restore(snapshot, GuestIdentity())
                await self.processes.adopt(machine.link)
            except BaseException:
                await asyncio.shield(self._driver.collect([self.spec]))
                raise
            self.change(state="running", snapshot="")
        self.renew()
