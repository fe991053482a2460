"""Templates: layers applied inside a sandbox, then a snapshot of it, named by their content."""

import asyncio
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from journeyman.sandbox.client.template import (
    AddTar,
    Copy,
    Layer,
    Run,
    SetEnv,
    TemplateSpec,
    Workdir,
)
from journeyman.sandbox.node import files
from journeyman.sandbox.node.commands import Command, run_command
from journeyman.sandbox.node.driver import Driver, Limits, Machine, MachineSpec
from journeyman.sandbox.node.images import Images
from journeyman.sandbox.node.link import GuestFileError, GuestIdentity, GuestLink
from journeyman.sandbox.node.rootfs import install_agent
from journeyman.sandbox.node.snapshots import SnapshotReader, write_snapshot
from journeyman.sandbox.service.living import SNAPSHOT_PREFIX
from journeyman.types.failure import UserError
from journeyman.types.value import Value

DEFAULT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_FILE = "template.json"
_TAR_TIMEOUT_S = 300.0


class Template(Value):
    """A built template, as recorded beside its snapshot."""

    id: str
    rootfs: str
    agent: str
    memory_bytes: int
    env: dict[str, str]
    workdir: str
    tenant: str = ""
    """Whose it is; empty is everybody's."""
    names: tuple[str, ...] = ()
    created_at: float = 0.0


async def one_piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


def sweep_abandoned(directory: Path, older_than_s: float = 6 * 3600) -> None:
    """Remove what a service killed while it built a template left behind."""
    for path in directory.glob(".building-*"):
        if time.time() - path.stat().st_mtime > older_than_s:
            shutil.rmtree(path, ignore_errors=True)


class Templates:
    """A directory of templates, shared by every service of this machine: names are digests, and
    each is renamed into place whole."""

    def __init__(
        self, directory: Path, images: Images, driver: Driver, rootfs: Path, agent: str
    ) -> None:
        """`agent` is its path inside `rootfs`, the default root file system."""
        self._directory = directory
        self._images = images
        self._driver = driver
        self._rootfs = rootfs
        self._agent = agent
        self._reader = SnapshotReader()
        self._building: dict[str, asyncio.Lock] = {}

    def snapshot(self, template: str) -> Path:
        return self._directory / template / "snapshot"

    def get(self, template: str) -> Template:
        """Raises UserError when there is none of that id."""
        if not template.startswith(("t-", SNAPSHOT_PREFIX)) or "/" in template:
            raise UserError(
                f"{template!r} is not a template id",
                "Use what build_template returned; build_template(TemplateSpec()) is the default.",
            )
        try:
            text = (self._directory / template / _FILE).read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"there is no template {template!r}", "Build it first: build_template(spec)."
            ) from None
        return Template.model_validate_json(text)

    async def keep(
        self,
        template: str,
        tenant: str,
        names: tuple[str, ...],
        save: Callable[[Path], Awaitable[None]],
    ) -> str:
        """A template from the state of a sandbox that was made from `template`; returns its id."""
        made = f"{SNAPSHOT_PREFIX}{secrets.token_hex(10)}"
        kept = self.get(template).model_copy(
            update={"id": made, "tenant": tenant, "names": names, "created_at": time.time()}
        )
        building = Path(tempfile.mkdtemp(dir=self._directory, prefix=".building-"))
        try:
            await save(building / "snapshot")
            (building / _FILE).write_text(kept.model_dump_json(), encoding="utf-8")
            os.rename(building, self._directory / made)
        finally:
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
        return made

    def kept(self, tenant: str) -> list[Template]:
        """A tenant's snapshots, the oldest first."""
        found = [self.get(path.name) for path in self._directory.glob(f"{SNAPSHOT_PREFIX}*")]
        mine = [template for template in found if template.tenant == tenant]
        return sorted(mine, key=lambda template: (template.created_at, template.id))

    def remove(self, template: str, tenant: str) -> bool:
        """Forget a tenant's snapshot; False where that tenant has none of that id. Sandboxes that
        came from it run on: what they need of it they have opened or linked."""
        if template not in {kept.id for kept in self.kept(tenant)}:
            return False
        doomed = self._directory / f".building-{template}"
        os.rename(self._directory / template, doomed)
        shutil.rmtree(doomed)
        return True

    def identify(self, spec: TemplateSpec) -> str:
        """The id: over the layers and everything they are applied to."""
        digest = hashlib.sha256()
        base = str(self._rootfs) if spec.base == "default" else spec.base
        driver = f"{self._driver.name} {self._driver.fingerprint}"
        for part in (base, self._agent, driver, spec.model_dump_json()):
            digest.update(part.encode() + b"\0")
        return f"t-{digest.hexdigest()[:20]}"

    async def build(self, spec: TemplateSpec) -> str:
        """Build it unless it is there; returns its id. Raises UserError for a layer that fails."""
        template = self.identify(spec)
        async with self._building.setdefault(template, asyncio.Lock()):
            if not (self._directory / template).is_dir():
                await self._build(template, spec)
        return template

    async def _build(self, template: str, spec: TemplateSpec) -> None:
        if spec.warm and not self._driver.snapshots_memory:
            raise UserError(
                f"the {self._driver.name} driver keeps no process in a template, so `warm` would "
                "have no effect",
                "Leave it out, or use the gvisor driver.",
            )
        start = self._beginning(spec)
        self._directory.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=self._directory, prefix=".building-"))
        work = Path(tempfile.mkdtemp(prefix="journeyman-template-"))
        limits = Limits(memory_bytes=spec.memory_bytes)
        machine_spec = MachineSpec(
            f"{template}-{work.name[-8:]}", work, Path(start.rootfs), start.agent, limits
        )
        machine: Machine | None = None
        try:
            machine = await self._start(start.id, machine_spec)
            built = start.model_copy(update={"id": template, "memory_bytes": spec.memory_bytes})
            built = await _apply(machine.link, spec, built)
            await self._save(machine, machine_spec, built, building)
            os.rename(building, self._directory / template)
        except FileExistsError:
            return  # another service of this machine built the same
        finally:
            if machine is not None:
                self._driver.kill(machine)
            await asyncio.shield(self._driver.collect([machine_spec]))
            await asyncio.to_thread(shutil.rmtree, work)
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)

    def _beginning(self, spec: TemplateSpec) -> Template:
        """What the layers are applied to: a template, or with an empty id a bare image."""
        if spec.base.startswith("t-"):
            return self.get(spec.base)
        rootfs, env, workdir = self._rootfs, DEFAULT_ENV, "/"
        if spec.base != "default":
            config = self._images.config(spec.base)
            if config.user not in ("", "0", "root", "0:0", "root:root"):
                raise UserError(
                    f"image {spec.base} wants its commands to run as {config.user!r}",
                    "Only images whose user is root can be used.",
                )
            rootfs = self._images.root(spec.base)
            install_agent(rootfs, self._rootfs / self._agent.lstrip("/"))
            env, workdir = {**DEFAULT_ENV, **config.env}, config.workdir
        return Template(
            id="",
            rootfs=str(rootfs),
            agent=self._agent,
            memory_bytes=0,
            env=env,
            workdir=workdir,
        )

    async def _start(self, base: str, machine_spec: MachineSpec) -> Machine:
        if not base:
            machine = await self._driver.boot(machine_spec)
        else:
            snapshot = self.snapshot(base)
            driver = self._driver
            manifest = await self._reader.check(snapshot, driver.name, driver.fingerprint)
            machine = await driver.restore(machine_spec, snapshot, manifest.next_number)
        try:
            await machine.link.begin_epoch(1, GuestIdentity(hostname="template"), 30.0)
        except BaseException:
            self._driver.kill(machine)
            raise
        return machine

    async def _save(
        self, machine: Machine, spec: MachineSpec, built: Template, building: Path
    ) -> None:
        await machine.link.quiesce()
        await write_snapshot(
            building / "snapshot",
            lambda into: self._driver.snapshot(machine, spec, into),
            driver=self._driver.name,
            fingerprint=self._driver.fingerprint,
            next_number=machine.link.next_number,
        )
        (building / _FILE).write_text(built.model_dump_json(), encoding="utf-8")


async def _apply(link: GuestLink, spec: TemplateSpec, template: Template) -> Template:
    await files.make_directory(link, template.workdir)  # an image may only name it
    for number, layer in enumerate(spec.layers):
        try:
            template = await _apply_layer(link, layer, template)
        except GuestFileError as error:
            raise UserError(
                f"layer {number} ({layer.kind}) failed: {error.strerror}: {error.filename}",
                "Mend that layer of the template.",
            ) from None
    if spec.warm:
        await _start_warm(link, spec, template)
    return template


async def _apply_layer(link: GuestLink, layer: Layer, template: Template) -> Template:
    match layer:
        case AddTar(path=path, data=data):
            await files.make_directory(link, path)
            argv = ("tar", "--extract", "--numeric-owner", "--file", "-", "--directory", path)
            await _run_layer(
                link, Command(argv, "/", template.env, data, _TAR_TIMEOUT_S), "add_tar"
            )
        case Copy(path=path, data=data, mode=mode):
            await files.write_file(link, path, one_piece(data), mode)
        case Run(command=command, timeout_s=timeout_s):
            run = Command(("sh", "-c", command), template.workdir, template.env, b"", timeout_s)
            await _run_layer(link, run, f"run {command!r}")
        case SetEnv(name=name, value=value):
            return template.model_copy(update={"env": {**template.env, name: value}})
        case Workdir(path=path):
            await files.make_directory(link, path)
            return template.model_copy(update={"workdir": path})
    return template


async def _run_layer(link: GuestLink, command: Command, what: str) -> None:
    result = await run_command(link, command)
    if result.exit_code != 0:
        how = "ran out of time" if result.timed_out else f"ended with {result.exit_code}"
        if result.signal:
            how = f"was ended by signal {result.signal}"
        raise UserError(
            f"template layer {what} {how}:\n{result.text.strip()[-2000:]}",
            "Mend that layer of the template.",
        )


async def _start_warm(link: GuestLink, spec: TemplateSpec, template: Template) -> None:
    """Started as a background child, so that it belongs to no command and outlives the snapshot."""
    argv = ("sh", "-c", 'exec setsid "$@" </dev/null >/dev/null 2>&1 & sleep "$0"')
    start = Command(
        (*argv, str(spec.warm_s), *spec.warm), template.workdir, template.env, b"", spec.warm_s + 60
    )
    await _run_layer(link, start, f"warm {spec.warm!r}")
