"""Completing conversations: messages in, messages and exact tokens out."""

from collections import OrderedDict
from collections.abc import Sequence

from journeyman.inference.conversation import Conversation, TurnFormat
from journeyman.inference.generation import Generator, OnToken
from journeyman.types import (
    Completion,
    CompletionRequest,
    Message,
    PolicyVersion,
    TokenStream,
    UserError,
)


class ChatService:
    """A `types.Sampler` that owns the token streams of its conversations.

    The streams of at most `max_conversations` are kept, the least recently used goes first; a
    conversation that comes back after that is rendered afresh, as an edited one would be.
    """

    def __init__(
        self, engine: Generator, chat_format: TurnFormat, *, max_conversations: int = 4096
    ) -> None:
        self.engine = engine
        self._format = chat_format
        self._max_conversations = max_conversations
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self.num_completions = 0
        self.num_edited = 0
        """Completions whose history did not extend the recorded one."""

    @property
    def version(self) -> PolicyVersion:
        """The weights that the next token comes from."""
        return self.engine.version

    @property
    def problem(self) -> str | None:
        """Why the engine serves nothing at present; None when it serves."""
        return self.engine.problem

    def stats(self) -> dict[str, float]:
        """The engine's counters and the conversations'."""
        return {
            **self.engine.stats(),
            "completions": self.num_completions,
            "edited_histories": self.num_edited,
            "conversations": len(self._conversations),
        }

    def messages(self, conversation: str) -> tuple[Message, ...]:
        """What that conversation holds, its last reply included; empty when it is not known."""
        known = self._conversations.get(conversation)
        return known.messages if known else ()

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return [self._format.decode([token]) for token in token_ids]

    def reply_text(self, token_ids: Sequence[int]) -> str:
        """The text of a reply, or of its beginning."""
        return self._format.decode_reply(token_ids)

    async def complete(
        self, request: CompletionRequest, on_token: OnToken | None = None
    ) -> Completion:
        """See `types.Sampler`; `on_token` is told of each token as it comes.

        Raises UserError when the conversation is being completed already: two replies cannot
        follow one stream.
        """
        conversation = self._conversation(request.conversation)
        if conversation.is_busy:
            raise UserError(
                f"conversation {request.conversation!r} is being completed already",
                "wait for its reply, or name another conversation",
            )
        conversation.is_busy = True
        try:
            prompt_ids, edited = conversation.begin(request)
            generation = await self.engine.generate(
                prompt_ids,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                stop_ids=(self._format.end_of_turn,),
                on_token=on_token,
            )
            message = conversation.commit(request, prompt_ids, generation)
        finally:
            conversation.is_busy = False
        self.num_completions += 1
        self.num_edited += edited
        return Completion(
            message=message,
            stop="end_of_turn" if generation.stop == "stop" else generation.stop,
            prompt_token_ids=tuple(prompt_ids),
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
        )

    def release(self, conversation: str) -> tuple[TokenStream, ...]:
        """Forget a conversation. Returns its streams; empty when it is not known."""
        known = self._conversations.pop(conversation, None)
        return known.streams() if known else ()

    def _conversation(self, name: str) -> Conversation:
        known = self._conversations.setdefault(name, Conversation(self._format))
        self._conversations.move_to_end(name)
        while len(self._conversations) > self._max_conversations:
            self._conversations.popitem(last=False)
        return known
