"""One session's history: always valid, whatever ended the last turn."""

from collections.abc import Sequence

from journeyman.agent.counting import TokenCounter
from journeyman.agent.recorder import StreamRecorder
from journeyman.agent.tools import CallOutcome
from journeyman.types import Completion, CompletionRequest, Message, ToolSpec, Turn

_SEED_STRIDE = 1_000_003


class Conversation:
    """Messages, turns and token streams of one session."""

    def __init__(
        self,
        name: str,
        opening: Sequence[Message],
        tools: tuple[ToolSpec, ...],
        counter: TokenCounter,
        *,
        budget_tokens: int,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.prompt = tuple(opening)
        self.messages: list[Message] = list(opening)
        self.turns: list[Turn] = []
        self.recorder = StreamRecorder()
        self._tools = tools
        self._counter = counter
        self._budget_tokens = budget_tokens
        self._temperature = temperature
        self._seed = seed
        self._unseen: list[Message] = []
        self._used_tokens = 0
        self._requests = 0

    def say(self, message: Message) -> None:
        """A further message of the person, after the first turn loop has ended."""
        self._append(message)
        if self.turns:
            last = self.turns[-1]
            self.turns[-1] = last.model_copy(update={"results": (*last.results, message)})

    def room(self) -> int:
        """Tokens left for the next reply."""
        if self._used_tokens:
            taken = self._used_tokens + self._counter.extension(self._unseen)
        else:
            taken = self._counter.prompt(self.messages, self._tools)
        return self._budget_tokens - taken

    def request(self, max_tokens: int) -> CompletionRequest:
        """Ask for the next reply. Each request of a seeded session has a seed of its own."""
        self._requests += 1
        seed = self._seed
        if seed is not None:
            seed = (seed * _SEED_STRIDE + self._requests) % 2**63
        return CompletionRequest(
            messages=tuple(self.messages),
            tools=self._tools,
            conversation=self.name,
            max_tokens=max_tokens,
            temperature=self._temperature,
            seed=seed,
        )

    def add_reply(self, completion: Completion, model_s: float) -> None:
        """Record what the model said."""
        self.recorder.add(completion)
        self._unseen.clear()
        sampled = len(completion.prompt_token_ids) + len(completion.token_ids)
        # A reply that was cut off is still to be closed with one token.
        self._used_tokens = sampled + (completion.stop != "end_of_turn") if sampled else 0
        self.messages.append(completion.message)
        self.turns.append(
            Turn(
                reply=completion.message,
                model_s=model_s,
                truncated=completion.stop in ("length", "context"),
            )
        )

    def add_results(self, outcomes: Sequence[CallOutcome], tools_s: float) -> None:
        """Record one result for each call of the last reply."""
        results = tuple(
            Message(role="tool", content=o.text, tool_call_id=o.call.id) for o in outcomes
        )
        last = self.turns[-1]
        calls = tuple(outcome.call for outcome in outcomes)
        self.turns[-1] = last.model_copy(
            update={
                "reply": last.reply.model_copy(update={"tool_calls": calls}),
                "results": results,
                "tools_s": tools_s,
            }
        )
        for message in results:
            self._append(message)

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._unseen.append(message)
