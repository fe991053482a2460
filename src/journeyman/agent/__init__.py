"""The production agent server: sessions, the turn loop, prompts, tools."""

from journeyman.agent.client import AgentClient, AgentServerError
from journeyman.agent.wire import SessionInfo, SessionRequest

__all__ = ["AgentClient", "AgentServerError", "SessionInfo", "SessionRequest"]
