"""The agent's tools: one schema for training and serving."""

from journeyman.agent.tools.bash import BASH
from journeyman.agent.tools.edit import EDIT
from journeyman.agent.tools.grep import GREP
from journeyman.agent.tools.read import READ
from journeyman.agent.tools.submit import SUBMIT
from journeyman.agent.tools.tool import Tool, ToolRefusal, Workspace
from journeyman.agent.tools.toolbox import CallOutcome, CallStatus, Toolbox, specs

__all__ = [
    "BASH",
    "EDIT",
    "GREP",
    "READ",
    "SUBMIT",
    "CallOutcome",
    "CallStatus",
    "Tool",
    "ToolRefusal",
    "Toolbox",
    "Workspace",
    "specs",
]
