"""One task run to a graded episode, through the agent server. Training and evaluation share it."""

from journeyman.episodes.arena import Arena, Attempt, open_arena

__all__ = ["Arena", "Attempt", "open_arena"]
