"""Run the calls of one reply: reads at the same time, everything else in order."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from journeyman.agent.tools.arguments import bind
from journeyman.agent.tools.bash import BASH
from journeyman.agent.tools.edit import EDIT
from journeyman.agent.tools.grep import GREP
from journeyman.agent.tools.read import READ
from journeyman.agent.tools.submit import SUBMIT
from journeyman.agent.tools.tool import Tool, ToolRefusal, Workspace
from journeyman.types import ToolCall, ToolSpec

TOOLS: tuple[Tool[Any], ...] = (BASH, READ, EDIT, GREP, SUBMIT)

# Names the same tools carry in agents that models were trained on.
_TOOL_ALIASES = {
    "read_file": "read",
    "view": "read",
    "cat": "read",
    "edit_file": "edit",
    "str_replace": "edit",
    "str_replace_editor": "edit",
    "run_terminal_cmd": "bash",
    "shell": "bash",
    "execute_bash": "bash",
    "grep_search": "grep",
    "search": "grep",
    "finish": "submit",
    "done": "submit",
}


class CallStatus(StrEnum):
    """How one call ended."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"


@dataclass
class CallOutcome:
    """The result of one call. `call` carries the repairs it took, `text` goes to the model."""

    call: ToolCall
    text: str = "interrupted"
    status: CallStatus = CallStatus.INTERRUPTED
    submitted: bool = False


class Toolbox:
    """The tools on one workspace."""

    def __init__(self, workspace: Workspace, tools: Sequence[Tool[Any]] = TOOLS) -> None:
        self.workspace = workspace
        self._tools = {tool.name: tool for tool in tools}

    def specs(self) -> tuple[ToolSpec, ...]:
        """The schema given to the model."""
        return tuple(tool.spec() for tool in self._tools.values())

    async def run(self, outcomes: Sequence[CallOutcome]) -> None:
        """Run each outcome's call and fill it in.

        Raises what a sandbox raises, and CancelledError; an outcome that was not reached by then
        stays `interrupted`, so that no call is without a result.
        """
        done = False
        for read_only, group in groupby(outcomes, key=self._is_read_only):
            if read_only and not done:
                await _together([self._run_one(outcome) for outcome in group])
                continue
            for outcome in group:
                if done:
                    outcome.text, outcome.status = "error: already submitted", CallStatus.REFUSED
                else:
                    await self._run_one(outcome)
                    done = outcome.submitted

    def _is_read_only(self, outcome: CallOutcome) -> bool:
        tool = self._find(outcome.call.name)
        return tool is not None and tool.read_only

    def _find(self, name: str) -> Tool[Any] | None:
        lowered = name.lower()
        return self._tools.get(lowered) or self._tools.get(_TOOL_ALIASES.get(lowered, ""))

    async def _run_one(self, outcome: CallOutcome) -> None:
        limit_s = self.workspace.command_s + 5.0  # a command's own limit ends first
        try:
            async with asyncio.timeout(limit_s) as limit:
                outcome.text = await self._call(outcome)
            outcome.status = CallStatus.OK
        except ToolRefusal as refusal:
            outcome.text = f"error: {refusal}"
            outcome.status = CallStatus.REFUSED
        except TimeoutError:
            if not limit.expired():
                raise
            outcome.text = f"error: no result within {limit_s:g} s"
            outcome.status = CallStatus.TIMED_OUT
        except OSError as error:  # of the guest's file system
            outcome.text = f"error: {error.strerror or error}"
            outcome.status = CallStatus.REFUSED

    async def _call(self, outcome: CallOutcome) -> str:
        call = outcome.call
        if call.error:
            raise ToolRefusal(call.error)
        tool = self._find(call.name)
        if tool is None:
            raise ToolRefusal(f"no tool {call.name[:40]!r}; there are {', '.join(self._tools)}")
        arguments, repairs = bind(tool, call.arguments)
        renamed = () if call.name == tool.name else (f"tool {call.name} read as {tool.name}",)
        outcome.call = call.model_copy(update={"repairs": (*call.repairs, *renamed, *repairs)})
        text: str = await tool.run(self.workspace, arguments)
        outcome.submitted = tool is SUBMIT
        return text


async def _together(runs: list[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first error ends the others and is raised as it is."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def specs() -> tuple[ToolSpec, ...]:
    """The one tool schema of training and serving."""
    return tuple(tool.spec() for tool in TOOLS)
