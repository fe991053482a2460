"""The production agent server: sessions, the turn loop, prompts, tools."""

from journeyman.agent.client import AgentClient, AgentServerError
from journeyman.agent.replay import ReplaySampler
from journeyman.agent.wire import SessionInfo, SessionRequest

__all__ = ["AgentClient", "AgentServerError", "ReplaySampler", "SessionInfo", "SessionRequest"]
