"""Serving a model: continuous batching, prefix cache, conversations, HTTP."""

from journeyman.inference.chat_service import ChatService
from journeyman.inference.engine import Engine
from journeyman.inference.generation import Generation, Generator
from journeyman.inference.scripted import ScriptedEngine, ScriptedSampler

__all__ = [
    "ChatService",
    "Engine",
    "Generation",
    "Generator",
    "ScriptedEngine",
    "ScriptedSampler",
]
