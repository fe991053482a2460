"""How many tokens the shortest solution of a task takes."""

from pathlib import Path

from journeyman.chat import ChatFormat, format_call
from journeyman.tasks.oracle import Oracle, calls_of

EPISODE_TOKENS = 640
"""Below the budget of 768, so that a model may also go astray once."""
PROMPT_TOKENS = 150
"""System message, tools, and the marks around three turns."""
INSTRUCTION_TOKENS = 130


class EpisodeSize:
    """Counts with the tokenizer of the model that will be trained."""

    def __init__(self, model_dir: Path) -> None:
        """Raises UserError if there is no tokenizer in `model_dir`."""
        self._chat = ChatFormat.load(model_dir)

    def instruction_fits(self, instruction: str) -> bool:
        return self._count(instruction) <= INSTRUCTION_TOKENS

    def leaves_room(self, oracle: Oracle, shown: str) -> bool:
        """Whether the oracle's episode fits with the longest instruction there may be."""
        calls = sum(self._count(format_call(name, given)) for name, given in calls_of(oracle))
        total = PROMPT_TOKENS + INSTRUCTION_TOKENS + calls + self._count(shown)
        return total <= EPISODE_TOKENS

    def _count(self, text: str) -> int:
        return len(self._chat.encode(text))
