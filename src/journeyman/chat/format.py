"""ChatML conversations as token ids.

Control tokens come only from here. Text of users, tools and files is encoded with special-token
matching off, so `<|im_end|>` inside a file reaches the model as seven ordinary tokens.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from journeyman.chat.parse import parse_reply
from journeyman.chat.template import END, START, default_system
from journeyman.chat.tools import render_tools
from journeyman.types import Message, ToolSpec, UserError

UNWRITABLE = "\ufffd"


class ChatFormat:
    """Renders and parses the conversations of one checkpoint.

    Property: for messages m1…mk whose assistant texts re-tokenise canonically,
    `render(m1…mk)` equals `render(m1…mi)` + sampled ids + `extend(mi+2…mk)`.
    """

    def __init__(self, tokenizer: Tokenizer, system: str | None) -> None:
        """`system` is what the model expects when a conversation brings no system message."""
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self._default_system = system
        self._start = _control(tokenizer, START)
        self.end_of_turn = _control(tokenizer, END)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._unwritable = _unwritable_characters(tokenizer)
        self._newline = self.encode("\n")
        self._header = [self._start, *self.encode("assistant\n")]

    @classmethod
    def load(cls, model_dir: str | Path) -> "ChatFormat":
        """Read `tokenizer.json` and the chat template of a checkpoint directory.

        Raises UserError naming the file that is missing or broken, or the unknown family.
        """
        directory = Path(model_dir)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"no tokenizer.json in {directory}", "fetch the model again")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for a broken file
            raise UserError(f"{file} is broken: {error}", "fetch the model again") from error
        return cls(tokenizer, default_system(directory))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The whole prompt, ending with the header of the assistant's next message."""
        ids: list[int] = []
        for message in self._with_system(messages, tools):
            ids += self._block(message)
        return ids + self._header

    def extend(self, messages: Iterable[Message]) -> list[int]:
        """The ids to append after a sampled assistant message that ends with `end_of_turn`."""
        ids = list(self._newline)
        for message in messages:
            ids += self._block(message)
        return ids + self._header

    def close_turn(self) -> list[int]:
        """What a reply that was cut off still needs before `extend`."""
        return [self.end_of_turn]

    def parse(self, text: str) -> Message:
        """The assistant message that `text` is, with its tool calls. Never raises."""
        return parse_reply(text)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: nothing in it is taken for a control token.

        Characters whose bytes the vocabulary lacks (a few control characters) become U+FFFD
        instead of vanishing.
        """
        # A lone surrogate has no UTF-8 form; a character the model cannot see becomes U+FFFD.
        clean = text.encode("utf-8", "replace").decode("utf-8").translate(self._unwritable)
        return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included as their names; broken UTF-8 becomes U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Text of a sampled reply, without the end-of-turn token that closes it."""
        closed = bool(ids) and ids[-1] == self.end_of_turn
        return self.decode(ids[:-1] if closed else ids)

    def _with_system(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Message, ...]:
        if messages and messages[0].role == "system":
            text, rest = messages[0].content, messages[1:]
        else:
            if self._default_system is None and not tools:
                return tuple(messages)
            text, rest = self._default_system or "", messages
        return (Message(role="system", content=render_tools(text, tools)), *rest)

    def _block(self, message: Message) -> list[int]:
        """One message with its end and the newline after it.

        An assistant's text is encoded apart from its header, as it was sampled; all others in
        one piece with it, as the checkpoint's own template does.
        """
        if message.role == "assistant":
            body = [*self._header, *self.encode(message.content)]
        else:
            body = [self._start, *self.encode(f"{message.role}\n{message.content}")]
        return [*body, self.end_of_turn, *self._newline]


def _control(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise UserError(
            f"the tokenizer has no {token} token", "use a checkpoint of the ChatML family"
        )
    return int(token_id)


def _unwritable_characters(tokenizer: Tokenizer) -> dict[int, str]:
    """ASCII characters for whose byte a byte-level vocabulary has no token."""
    vocabulary = tokenizer.get_vocab()
    split = ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        code: UNWRITABLE
        for code in range(128)
        if split.pre_tokenize_str(chr(code))[0][0] not in vocabulary
    }
