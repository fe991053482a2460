"""`/files`: contents of a sandbox's files, in and out, by token or by signed address."""

import base64
import errno
import gzip
import hashlib
import hmac
import posixpath
import time
import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from journeyman.sandbox.node import files
from journeyman.sandbox.node.link import GuestFileError, GuestLink
from journeyman.sandbox.service.e2b.connect_rpc import ConnectError
from journeyman.sandbox.service.e2b.guest_users import GuestUser
from journeyman.sandbox.service.e2b.place import may_enter, named_user, resolve, user_of
from journeyman.sandbox.service.living import LivingSandbox

_STATUS = {errno.ENOENT: 404, errno.ENOSPC: 507, errno.EACCES: 403, errno.EPERM: 403}
_CHUNK_BYTES = 1 << 18


def failure(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status)


def is_allowed(sandbox: LivingSandbox, request: Request, operation: str) -> bool:
    """By the access token, or by a signature made with it for this path, user and operation."""
    if may_enter(sandbox, request):
        return True
    query = request.query_params
    given, expiration = query.get("signature", ""), query.get("signature_expiration", "")
    token = sandbox.record.claim.access_token
    parts = [query.get("path", ""), operation, query.get("username", ""), token]
    parts += [expiration] if expiration else []
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    expected = "v1_" + base64.b64encode(digest).rstrip(b"=").decode("ascii")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        return False
    return not expiration or (expiration.isdecimal() and time.time() < int(expiration))


async def download(sandbox: LivingSandbox, request: Request) -> Response:
    """Raises ConnectError for an unknown user."""
    async with sandbox.guest() as link:
        user, _ = await user_of(link, named_user(request, sandbox))
        path = resolve(request.query_params.get("path", ""), user)
        try:
            entry = await files.stat_file(link, path, follow=True)
        except GuestFileError as error:
            return failure(_STATUS.get(error.errno or 0, 500), f"path '{path}': {error.strerror}")
        if entry.kind != "f":
            return failure(400, f"path '{path}' is no regular file")
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    pieces = _contents(sandbox, path, compressed)
    headers = {"Content-Disposition": f"inline; filename*=UTF-8''{_quoted(path)}"}
    if compressed:
        headers["Content-Encoding"] = "gzip"
    else:
        headers["Content-Length"] = str(entry.size)
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _quoted(path: str) -> str:
    name = posixpath.basename(path).encode("utf-8", "surrogateescape")
    return "".join(chr(c) if chr(c).isalnum() and c < 128 else f"%{c:02X}" for c in name)


async def _contents(sandbox: LivingSandbox, path: str, compressed: bool) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(wbits=31) if compressed else None
    async with sandbox.guest() as link:
        async for piece in files.read_file(link, path, 1 << 62):
            yield packer.compress(piece) if packer else piece
    if packer:
        yield packer.flush()


async def upload(sandbox: LivingSandbox, request: Request) -> Response:
    """One body, or the files of a form. Raises ConnectError for an unknown user."""
    async with sandbox.guest() as link:
        user, _ = await user_of(link, named_user(request, sandbox))
        kind = request.headers.get("content-type", "")
        try:
            if kind.startswith("multipart/form-data"):
                written = await _form(link, request, user)
            else:
                path = resolve(request.query_params.get("path", ""), user)
                await _write(link, path, _body(request), user)
                written = [path]
        except GuestFileError as error:
            status = _STATUS.get(error.errno or 0, 400)
            return failure(status, f"cannot write '{error.filename}': {error.strerror}")
        except (zlib.error, gzip.BadGzipFile, EOFError) as error:
            return failure(400, f"the body is no gzip: {error}")
    return JSONResponse([_written(path) for path in written])


def _written(path: str) -> dict[str, str]:
    return {"name": posixpath.basename(path), "type": "file", "path": path}


async def _form(link: GuestLink, request: Request, user: GuestUser) -> list[str]:
    """Each part of the name `file`; a file's own name is its path unless the query has one."""
    only = request.query_params.get("path")
    written = []
    async with request.form(max_files=10_000) as form:
        for part in form.getlist("file"):
            if isinstance(part, str):
                raise ConnectError("invalid_argument", "a part of the form is no file")
            path = resolve(only or part.filename or "", user)

            async def pieces(part: object = part) -> AsyncIterator[bytes]:
                while piece := await part.read(_CHUNK_BYTES):  # type: ignore[attr-defined]
                    yield piece

            await _write(link, path, pieces(), user)
            written.append(path)
    return written


async def _body(request: Request) -> AsyncIterator[bytes]:
    packed = request.headers.get("content-encoding", "") == "gzip"
    unpacker = zlib.decompressobj(wbits=31) if packed else None
    async for piece in request.stream():
        rest = piece
        while unpacker and rest:
            yield unpacker.decompress(rest, _CHUNK_BYTES)
            rest = unpacker.unconsumed_tail
        if not unpacker:
            yield piece
    if unpacker and not unpacker.eof:
        raise EOFError("it ends early")


async def _write(
    link: GuestLink, path: str, content: AsyncIterator[bytes], user: GuestUser
) -> None:
    """A file that is there keeps its mode and owner."""
    try:
        there = await files.stat_file(link, path, follow=True)
        mode, owner = there.mode, files.Owner(there.user, there.group)
    except GuestFileError:
        mode, owner = 0o644, user.owner
    await files.write_file(link, path, content, mode, owner)
