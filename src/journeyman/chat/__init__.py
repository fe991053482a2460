"""From messages to token ids and back, per model family. Needs neither torch nor Transformers."""

from journeyman.chat.format import ChatFormat
from journeyman.chat.parse import parse_reply
from journeyman.chat.tools import format_call, render_tools

__all__ = ["ChatFormat", "format_call", "parse_reply", "render_tools"]
