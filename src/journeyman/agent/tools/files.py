"""Text files as bytes and back, so that an edit changes nothing but what was asked."""

import codecs
from dataclasses import dataclass

from journeyman.agent.tools.tool import ToolRefusal, Workspace
from journeyman.types import UserError

MAX_FILE_BYTES = 8 << 20

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class TextFile:
    """Decoded text with what is needed to write it back byte for byte."""

    text: str
    encoding: str
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Bytes of a changed text. Raises ToolRefusal for characters the encoding lacks."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise ToolRefusal(f"the file is {self.encoding}: {wrong!r} cannot be written") from None


async def read_text(workspace: Workspace, path: str) -> TextFile:
    """Read a guest file as text. Raises ToolRefusal when it is missing, large or binary."""
    shown = workspace.shown(path)
    try:
        data = await workspace.sandbox.read_file(path, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise ToolRefusal(f"no file {shown}") from None
    except IsADirectoryError:
        raise ToolRefusal(f"{shown} is a directory") from None
    except PermissionError:
        raise ToolRefusal(f"no permission to read {shown}") from None
    except UserError as error:
        raise ToolRefusal(f"{shown}: {error.cause}") from None
    return decode(data, shown)


def decode(data: bytes, shown: str) -> TextFile:
    """UTF-8, UTF-16 with a mark, else Latin-1 (which any bytes survive). Raises ToolRefusal."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                return TextFile(data[len(bom) :].decode(encoding), encoding, bom)
            except UnicodeDecodeError:
                break
    if b"\0" in data[:8192]:
        raise ToolRefusal(f"{shown} is binary")
    try:
        return TextFile(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return TextFile(data.decode("latin-1"), "latin-1")
