"""A session's events as a person reads them in a terminal."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from journeyman.agent.events import Event
from journeyman.agent.tools.text import clean, clip
from journeyman.chat.tools import CLOSE, OPEN

_SHOWN_LINES = 12
_MARKS = {"ok": ("  ", "dim"), "refused": ("✗ ", "yellow"), "timed_out": ("⏱ ", "yellow")}


class SessionView:
    """Prints each event once. What came from model or sandbox is shown as plain text only."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, event: Event) -> None:
        """Print one event; those without interest for a person are left out."""
        lines = {
            "reply": _reply,
            "call": _call,
            "result": _result,
            "stop": _stop,
            "error": _error,
        }.get(event.type)
        if lines is not None:
            text = lines(event.data)
            if text.plain:
                self._console.print(text)


def _reply(data: dict[str, Any]) -> Text:
    """What the model says beside its calls."""
    spoken = str(data["content"])
    while OPEN in spoken:
        before, _, rest = spoken.partition(OPEN)
        spoken = before + rest.partition(CLOSE)[2]
    return Text(clean(spoken).strip())


def _call(data: dict[str, Any]) -> Text:
    if data.get("error"):
        return Text("● a call that cannot be read", style="yellow")
    arguments = ", ".join(
        f"{name}={clip(json.dumps(value, ensure_ascii=False), 80)}"
        for name, value in data["arguments"].items()
    )
    return Text(clean(f"● {data['name']}({arguments})"), style="bold")


def _result(data: dict[str, Any]) -> Text:
    mark, style = _MARKS.get(str(data["status"]), ("✗ ", "red"))
    lines = clean(str(data["content"])).split("\n")
    more = len(lines) - _SHOWN_LINES
    if more > 0:
        lines = [*lines[:_SHOWN_LINES], f"… {more} more lines"]
    return Text("\n".join(f"  {mark}{line}" for line in lines), style=style)


def _stop(data: dict[str, Any]) -> Text:
    return Text(f"■ {data['reason']}", style="bold")


def _error(data: dict[str, Any]) -> Text:
    return Text(f"■ {data['cause']}", style="red")
