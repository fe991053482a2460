"""The one prompt builder: what a model sees before its first word, in training and serving.

Every token here is paid in every episode, so the system text says only what the tools'
signatures don't. How the tools are written is the chat family's matter (`journeyman.chat`).
"""

from journeyman.types import Message

SYSTEM = "Fix the code. One tool call per reply, then submit."


def opening(instruction: str) -> tuple[Message, Message]:
    """The first messages of every session."""
    return Message(role="system", content=SYSTEM), user(instruction)


def user(content: str) -> Message:
    """What a person or a task says."""
    return Message(role="user", content=content.strip())
