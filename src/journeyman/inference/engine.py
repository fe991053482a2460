"""The engine: a step loop on one thread, an asyncio interface in front of it."""

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from journeyman.inference.batch import build_batch
from journeyman.inference.blocks import BlockPool
from journeyman.inference.generation import Generation, OnToken
from journeyman.inference.scheduler import Scheduler
from journeyman.inference.sequence import Sequence as Request
from journeyman.inference.stats import Counters
from journeyman.model import BLOCK, Backend, ModelConfig
from journeyman.model.backends import make_backend
from journeyman.model.checkpoint import digest, load_state, require_finite
from journeyman.types import EngineError, PolicyVersion, UserError

log = logging.getLogger(__name__)
Outcome = Generation | BaseException


class Engine:
    """Continuous batching of one model. Use from any event loop; close when done.

    The weights of `model_dir` are served as `version`, by default number 0 with the digest they
    have. Every later set comes through `load_weights`. `kv_tokens` is the size of the KV cache,
    `max_sequences` how many sequences decode together, `step_tokens` how many tokens, prompts
    included, one step computes at most (None: 512, or more for more sequences). Raises UserError.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        backend: str | Backend = "auto",
        kv_tokens: int = 65536,
        max_sequences: int = 64,
        step_tokens: int | None = None,
        version: PolicyVersion | None = None,
    ) -> None:
        step_tokens = max(512, max_sequences) if step_tokens is None else step_tokens
        if max_sequences < 1 or step_tokens < max_sequences:
            raise UserError(
                f"max_sequences={max_sequences} with step_tokens={step_tokens}",
                "at least one sequence, and a token of each sequence must fit in a step",
            )
        if kv_tokens < BLOCK:
            raise UserError(f"kv_tokens={kv_tokens} is less than one block of {BLOCK} tokens")
        self.config = ModelConfig.load(model_dir)
        state = load_state(model_dir, torch.bfloat16)
        found = digest(state)
        self._version = version or PolicyVersion(number=0, digest=found)
        _require_digest(self._version, found)
        require_finite(state)
        self._backend = make_backend(self.config, backend) if isinstance(backend, str) else backend
        self._backend.load(state)
        num_blocks = kv_tokens // BLOCK
        self._backend.allocate(num_blocks)
        self.context = min(self.config.max_positions, num_blocks * BLOCK)
        self._scheduler = Scheduler(
            BlockPool(num_blocks),
            max_sequences=max_sequences,
            step_tokens=step_tokens,
            version=self._version,
        )
        self._counters = Counters()
        self._refusal: BaseException | None = None
        self._closed = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> PolicyVersion:
        """The weights that the next token comes from."""
        return self._version

    @property
    def problem(self) -> str | None:
        """Why nothing is sampled at present: wrong weights, a failed step, closed. Else None."""
        if self._closed:
            return "the engine is closed"
        return None if self._refusal is None else str(self._refusal)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
        on_token: OnToken | None = None,
    ) -> Generation:
        """Sample up to `max_tokens` tokens after `prompt_ids`.

        The same seed gives the same tokens, whatever else is running (within the backend's batch
        invariance). A prompt that fills the context comes back at once with stop "context".
        Cancelling the call frees its blocks before the next step. Raises UserError for arguments
        without meaning, EngineError when the engine cannot serve.
        """
        self._check(prompt_ids, max_tokens, temperature, top_p)
        if len(prompt_ids) >= self.context:
            return Generation(token_ids=(), logprobs=(), versions=(), stop="context")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        request = Request(
            tokens=list(prompt_ids),
            num_prompt=len(prompt_ids),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=(secrets.randbits(63) if seed is None else seed) % 2**64,
            stop_ids=frozenset(stop_ids),
            finish=lambda outcome: _call_soon(loop, _resolve, future, outcome),
            on_token=on_token and (lambda token: _call_soon(loop, on_token, token)),
        )
        self._post(lambda: self._submit(request))
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(EngineError):  # a closed engine holds nothing
                self._post(lambda: self._cancel(request))
            raise

    async def load_weights(self, state: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """Serve `state` as `version` from the next step on.

        No request is aborted: those in flight keep their tokens, and their keys and values are
        computed again by the new weights. Raises EngineError when the digest of `state` is not
        `version.digest` or a value is not finite; then nothing is sampled until a correct set
        is loaded: requests in flight wait, new ones are refused.
        """
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[None] = loop.create_future()
        tensors = dict(state)
        problem = await asyncio.to_thread(_problem_with, tensors, version)

        def load() -> None:
            outcome = problem or self._load(tensors, version)
            self._refusal = outcome
            _call_soon(loop, _resolve, loaded, outcome)

        self._post(load)
        await loaded

    def stats(self) -> dict[str, float]:
        """Counters since the start and the present load; see `Counters.snapshot`."""
        scheduler = self._scheduler
        return {
            **self._counters.snapshot(),
            "preemptions": scheduler.num_preemptions,
            "reused_tokens": scheduler.num_reused_tokens,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_free": scheduler.pool.num_available / scheduler.pool.num_blocks,
        }

    def close(self) -> None:
        """End the thread. Requests in flight fail with EngineError. Idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(
        self, prompt_ids: Sequence[int], max_tokens: int, temperature: float, top_p: float
    ) -> None:
        if not prompt_ids:
            raise UserError("the prompt is empty", "give at least one token")
        wrong = [token for token in prompt_ids if not 0 <= token < self.config.vocab_size]
        if wrong:
            raise UserError(
                f"token id {wrong[0]} is outside the vocabulary of {self.config.vocab_size}",
                "tokenise with the tokenizer of this model",
            )
        if max_tokens < 1 or not temperature >= 0 or not 0 < top_p <= 1:
            raise UserError(
                f"max_tokens={max_tokens}, temperature={temperature}, top_p={top_p}",
                "max_tokens is at least 1, temperature at least 0, top_p above 0 and at most 1",
            )

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed")
            self._inbox.append(command)
            self._wake.notify()

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        """The thread. However it ends, every request is told."""
        end: Exception = EngineError("the engine was closed")
        try:
            self._loop()
        except Exception as error:
            log.exception("the engine's thread ended")
            end = error
        self._refusal = end
        with self._wake:
            self._closed = True
            commands = list(self._inbox)
        for command in commands:
            with suppress(Exception):  # `end` is what everyone is told
                command()
        self._fail_all(end)

    def _loop(self) -> None:
        """Consumes commands and steps. Sleeps while nothing can be computed; any command wakes
        it. Ends when closed."""
        while True:
            with self._wake:
                while not (self._inbox or self._closed or self._can_step()):
                    self._wake.wait()
                if self._closed:
                    return
            while self._inbox:
                self._inbox.popleft()()
            if self._can_step():
                self._guarded_step()

    def _can_step(self) -> bool:
        return self._refusal is None and len(self._scheduler) > 0

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:
            # Whatever it was, its sequences are in no known state. It is told to every request,
            # now and until good weights are loaded.
            log.exception("the engine stopped sampling")
            self._refusal = error
            self._fail_all(error)
            self._scheduler.pool.forget()

    def _step(self) -> None:
        chunks = self._scheduler.schedule()
        started = time.perf_counter()
        result = self._backend.step(build_batch(chunks))
        token_ids, logprobs = result.token_ids.tolist(), result.logprobs.tolist()
        sampled = [chunk.sequence for chunk in chunks if chunk.is_sampled]
        for chunk in chunks:
            self._scheduler.advance(chunk)
        for request, token, logprob in zip(sampled, token_ids, logprobs, strict=True):
            if request.on_token is not None:
                request.on_token(token)
            stop = request.append(token, logprob, self._version.number, self.context)
            if stop is not None:
                self._scheduler.remove(request)
                request.finish(request.generation(stop))
        self._counters.add_step(
            sum(chunk.num_tokens for chunk in chunks),
            len(sampled),
            time.perf_counter() - started,
        )

    def _submit(self, request: Request) -> None:
        if self._refusal is not None:
            request.finish(
                EngineError(f"the engine serves nothing: {self._refusal}", "load correct weights")
            )
        else:
            self._scheduler.add(request)

    def _cancel(self, request: Request) -> None:
        self._counters.cancelled += self._scheduler.remove(request)

    def _load(self, state: dict[str, Tensor], version: PolicyVersion) -> Exception | None:
        try:
            self._backend.load(state)
        except Exception as error:
            return error
        self._scheduler.change_version(version)
        self._version = version
        log.info("serving policy version %d (%s)", version.number, version.digest[:12])
        return None

    def _fail_all(self, error: BaseException) -> None:
        for request in self._scheduler.drain():
            request.finish(error)


def _problem_with(state: Mapping[str, Tensor], version: PolicyVersion) -> Exception | None:
    try:
        _require_digest(version, digest(state))
        require_finite(state)
    except EngineError as error:
        return error
    return None


def _require_digest(version: PolicyVersion, found: str) -> None:
    if found != version.digest:
        raise EngineError(
            f"the weights have the digest {found[:16]}…, policy version {version.number} was "
            f"published with {version.digest[:16]}…",
            "publish the version again; nothing is sampled from weights that are not what they say",
        )


def _resolve(future: "asyncio.Future[object]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _call_soon(loop: asyncio.AbstractEventLoop, *call: object) -> None:
    """`call` on the loop, unless the loop is gone: then nobody waits for it."""
    try:
        loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]
    except RuntimeError:
        log.debug("an event loop was closed before its request ended")
