"""All sandboxes of one node: creation, leases, ends, and recovery from disk."""

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from journeyman.sandbox.node import files
from journeyman.sandbox.node.driver import Driver, Limits
from journeyman.sandbox.node.processes import ProcessTable
from journeyman.sandbox.node.snapshots import SnapshotReader
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.sandbox.service.record import Claim, SandboxRecord, Term, read_records
from journeyman.sandbox.service.templates import Templates, one_piece
from journeyman.sandbox.wire.api import Health
from journeyman.types.failure import SandboxError, SandboxGone, UserError

log = logging.getLogger(__name__)
_REAP_EVERY_S = 0.5
_REMEMBERED_ENDS = 10_000


class SandboxManager:
    """Owns `state`: one directory for each sandbox, removed only once nothing else is left."""

    def __init__(self, state: Path, driver: Driver, templates: Templates) -> None:
        self._state = state / "sandboxes"
        self._lock_path = state / "lock"
        self._driver = driver
        self._templates = templates
        self._reader = SnapshotReader()
        self._living: dict[str, LivingSandbox] = {}
        self._ends: OrderedDict[str, SandboxGone] = OrderedDict()
        self._to_collect: list[LivingSandbox] = []
        self._restores = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self._tasks: list[asyncio.Task[None]] = []
        self._falling_asleep: dict[str, asyncio.Task[None]] = {}
        self._lock_file = -1

    # ---- the service's own life

    async def start(self) -> None:
        """Take the state directory and settle what an earlier life left there."""
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_file = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another sandbox service uses {self._state}",
                "Stop it, or give this one another --state directory.",
            ) from None
        await self._recover()
        self._tasks = [
            asyncio.create_task(self._expire(), name="sandbox leases"),
            asyncio.create_task(self._collect_ended(), name="sandbox collector"),
        ]

    async def stop(self) -> None:
        """End every running sandbox; hibernated ones stay on disk for the next life."""
        for task in self._tasks:
            task.cancel()
        for sandbox in list(self._living.values()):
            if sandbox.record.state != "hibernated":
                self._end(sandbox, "its service stopped")
        await self._collect_now()
        os.close(self._lock_file)

    async def _recover(self) -> None:
        """Hibernated sandboxes are found again. Anything else died with its service, whose end
        closed the agent's pipes: what is left of it is removed."""
        for directory, record in read_records(self._state):
            if record is None:
                await asyncio.to_thread(shutil.rmtree, directory)
                continue
            sandbox = LivingSandbox(record, directory, self._driver, self._reader)
            if record.state == "hibernated":
                self._living[record.id] = sandbox
            else:
                self._end(sandbox, "its service was killed")
        await self._collect_now()

    # ---- creation

    async def create(
        self,
        template: str,
        contents: Mapping[str, bytes],
        lease_s: float,
        stands_still: bool = False,
        *,
        env: Mapping[str, str] | None = None,
        term: Term | None = None,
        claim: Claim | None = None,
    ) -> LivingSandbox:
        """Fork a template. On any failure nothing is left."""
        prepared = self._templates.get(template)
        record = SandboxRecord(
            id=_new_id(),
            state="creating",
            template=template,
            created_at=time.time(),
            lease_s=lease_s,
            rootfs=prepared.rootfs,
            agent=prepared.agent,
            limits=Limits(memory_bytes=prepared.memory_bytes),
            env={**prepared.env, **(env or {})},
            stands_still=stands_still,
            term=term or Term(),
            claim=claim or Claim(),
        )
        sandbox = await self._begin(record, self._templates.snapshot(template))
        try:
            async with sandbox.guest() as link:
                for path, data in contents.items():
                    await files.write_file(link, path, one_piece(data), 0o644)
        except BaseException as error:
            self._end(sandbox, f"its creation failed: {error}")
            if isinstance(error, OSError):
                raise SandboxError(f"cannot write {error.filename!r}: {error.strerror}") from None
            raise
        return sandbox

    async def fork(
        self, parent: LivingSandbox, term: Term | None = None, claim: Claim | None = None
    ) -> LivingSandbox:
        """A second sandbox that continues from the parent's present state."""
        record = parent.record.model_copy(
            update={
                "id": _new_id(),
                "state": "creating",
                "parent": parent.record.id,
                "created_at": time.time(),
                "snapshot": "",
                "term": term or parent.record.term,
                "claim": claim or parent.record.claim,
            }
        )
        inherit = parent.processes
        if parent.record.state == "hibernated":
            async with parent.lock.exclusive():
                if parent.record.state == "hibernated":
                    return await self._begin(record, parent.snapshot_directory, inherit)
        snapshot = self._state.parent / "forks" / record.id
        try:
            async with parent.guest(), parent.saving:
                await parent.save(snapshot, durable=False)
            return await self._begin(record, snapshot, inherit)
        finally:
            await asyncio.to_thread(shutil.rmtree, snapshot, ignore_errors=True)

    async def _begin(
        self, record: SandboxRecord, snapshot: Path, inherit: ProcessTable | None = None
    ) -> LivingSandbox:
        directory = self._state / record.id
        directory.mkdir(mode=0o700)
        sandbox = LivingSandbox(record, directory, self._driver, self._reader)
        self._living[record.id] = sandbox
        if inherit:
            sandbox.processes.inherit(inherit)
        try:
            record.write(directory)
            async with self._restores:
                await sandbox.start(snapshot)
            sandbox.change(state="running")
        except BaseException as error:
            self._end(sandbox, f"its creation failed: {error}")
            raise
        sandbox.renew()
        return sandbox

    # ---- finding and ending

    def get(self, sandbox_id: str, tenant: str = "") -> LivingSandbox:
        """Raises SandboxGone saying why it ended, where that is remembered. For a `tenant`,
        another tenant's is unknown."""
        sandbox = self._living.get(sandbox_id)
        if tenant and (sandbox is None or sandbox.record.claim.tenant != tenant):
            raise SandboxGone(f"sandbox {sandbox_id} is gone: this service does not know it")
        if sandbox is not None and sandbox.is_dead:
            self._end_dead(sandbox)
            sandbox = None
        if sandbox is None:
            unknown = SandboxGone(
                f"sandbox {sandbox_id} is gone: this service does not know it",
                "Create a new one.",
            )
            raise self._ends.get(sandbox_id, unknown)
        return sandbox

    def list(self, tenant: str = "") -> list[LivingSandbox]:
        """Running and hibernated ones, of one tenant or of all."""
        return [
            sandbox
            for sandbox in self._living.values()
            if sandbox.record.state != "creating"
            and (not tenant or sandbox.record.claim.tenant == tenant)
        ]

    async def keep_snapshot(self, sandbox: LivingSandbox, names: tuple[str, ...]) -> str:
        """Its present state as a template of its tenant's, for new sandboxes; it runs on."""
        async with sandbox.guest(), sandbox.saving:
            return await self._templates.keep(
                sandbox.record.template, sandbox.record.claim.tenant, names, sandbox.save
            )

    def close(self, sandbox_id: str) -> None:
        """Idempotent."""
        if sandbox := self._living.get(sandbox_id):
            self._end(sandbox, "it was closed")

    def health(self) -> Health:
        return Health(
            driver=self._driver.name,
            isolation=self._driver.isolation,
            limits_enforced=self._driver.enforced,
            sandboxes=len(self._living),
        )

    def _end(self, sandbox: LivingSandbox, cause: str) -> None:
        """At once: the process is killed. What it leaves is collected in the background."""
        self._living.pop(sandbox.record.id, None)
        if sandbox.ended:
            return
        sandbox.ended = cause
        sandbox.processes.lose(f"its sandbox is gone: {cause}")
        self._ends[sandbox.record.id] = sandbox.gone_error()
        while len(self._ends) > _REMEMBERED_ENDS:
            self._ends.popitem(last=False)
        if sandbox.machine is not None:
            self._driver.kill(sandbox.machine)
            sandbox.machine = None
        self._to_collect.append(sandbox)

    def _end_dead(self, sandbox: LivingSandbox) -> None:
        cause = sandbox.machine.link.cause if sandbox.machine else ""
        self._end(sandbox, cause or "its engine ended by itself")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY_S)
            now = time.monotonic()
            for sandbox in list(self._living.values()):
                if sandbox.is_dead:
                    self._end_dead(sandbox)
                elif sandbox.record.state == "creating":
                    continue  # nobody can have used it yet
                elif sandbox.record.term.ends_at:
                    self._end_term(sandbox)
                elif now > sandbox.expires_at and not sandbox.lock.busy:
                    self._end(sandbox, f"its lease of {sandbox.record.lease_s:g} s ran out")

    def _end_term(self, sandbox: LivingSandbox) -> None:
        """Use does not hold it up, a hibernated sandbox has no end."""
        term = sandbox.record.term
        if sandbox.record.state == "hibernated" or time.time() < term.ends_at:
            return
        if term.at_end == "close":
            self._end(sandbox, "its time was up")
        elif sandbox.record.id not in self._falling_asleep:
            task = asyncio.create_task(self._put_to_sleep(sandbox))
            self._falling_asleep[sandbox.record.id] = task

    async def _put_to_sleep(self, sandbox: LivingSandbox) -> None:
        try:
            await sandbox.hibernate()
        except (SandboxError, SandboxGone) as error:
            log.warning("sandbox %s cannot be hibernated at its end: %s", sandbox.record.id, error)
            self._end(sandbox, f"its time was up, and it could not be hibernated: {error}")
        finally:
            del self._falling_asleep[sandbox.record.id]

    async def _collect_ended(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY_S)
            await asyncio.shield(self._collect_now())

    async def _collect_now(self) -> None:
        batch, self._to_collect = self._to_collect, []
        if not batch:
            return
        await self._driver.collect([sandbox.spec for sandbox in batch])
        for sandbox in batch:
            await asyncio.to_thread(shutil.rmtree, sandbox.directory)


def _new_id() -> str:
    return f"sb-{secrets.token_hex(6)}"
