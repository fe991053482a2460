"""What the engine counts."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Since the engine started. Written by its thread, read by anyone."""

    steps: int = 0
    computed_tokens: int = 0
    """Tokens that went through the model, prompts included."""
    sampled_tokens: int = 0
    cancelled: int = 0
    busy_s: float = 0.0

    def add_step(self, computed: int, sampled: int, seconds: float) -> None:
        """Count one step."""
        self.steps += 1
        self.computed_tokens += computed
        self.sampled_tokens += sampled
        self.busy_s += seconds

    def snapshot(self) -> dict[str, float]:
        """All counters, and sampled tokens per second of computing."""
        return {
            "steps": self.steps,
            "computed_tokens": self.computed_tokens,
            "sampled_tokens": self.sampled_tokens,
            "cancelled": self.cancelled,
            "busy_s": self.busy_s,
            "sampled_tok_s": self.sampled_tokens / self.busy_s if self.busy_s else 0.0,
        }
