"""Assemble what was sampled into token streams: token in, token out, never re-tokenised."""

from journeyman.types import Completion, TokenStream


class StreamRecorder:
    """Joins the completions of one episode.

    A completion whose prompt begins with everything recorded so far extends the stream; any
    other prompt (an edited or re-tokenised history) starts a new one. Completions of servers
    that give no ids leave no stream.
    """

    def __init__(self) -> None:
        self._finished: list[TokenStream] = []
        self._reset()

    def _reset(self) -> None:
        self._ids: list[int] = []
        self._mask: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    @property
    def length(self) -> int:
        """Tokens in the stream that is being recorded."""
        return len(self._ids)

    def add(self, completion: Completion) -> None:
        """Record one completion. Raises ValueError when its arrays differ in length."""
        sampled = len(completion.token_ids)
        if not sampled == len(completion.logprobs) == len(completion.versions):
            raise ValueError(
                f"a completion has {sampled} tokens, {len(completion.logprobs)} logprobs and "
                f"{len(completion.versions)} versions"
            )
        if not completion.prompt_token_ids:
            return
        prompt = list(completion.prompt_token_ids)
        if prompt[: len(self._ids)] != self._ids:
            self._finish()
        added = prompt[len(self._ids) :]
        self._ids += [*added, *completion.token_ids]
        self._mask += [*([False] * len(added)), *([True] * sampled)]
        self._logprobs += [*([0.0] * len(added)), *completion.logprobs]
        self._versions += [*([-1] * len(added)), *completion.versions]

    def streams(self) -> tuple[TokenStream, ...]:
        """All streams, the open one last."""
        return tuple(self._finished) + (() if not self._ids else (self._open(),))

    def _open(self) -> TokenStream:
        return TokenStream(
            token_ids=tuple(self._ids),
            loss_mask=tuple(self._mask),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
        )

    def _finish(self) -> None:
        self._finished.append(self._open())
        self._reset()
