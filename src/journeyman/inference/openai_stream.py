"""OpenAI's streamed form of a chat completion: server-sent events with what is new."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from journeyman.chat.tools import OPEN
from journeyman.inference.chat_service import ChatService
from journeyman.inference.openai import ChatRequest, reply_message, response
from journeyman.types import Completion, CompletionRequest, JourneymanError


class VisibleText:
    """The part of a growing reply that can be shown already.

    Held back: half of a character, what may become a tool call, and white space before one.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self.shown = ""

    def add(self, token_id: int) -> str:
        """What a further token lets be shown; often nothing."""
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids).rstrip("\ufffd")
        if text.lstrip()[:1] in ("{", "`"):
            return ""
        text = text.partition(OPEN)[0]
        for length in range(len(OPEN) - 1, 0, -1):
            if text.endswith(OPEN[:length]):
                text = text[:-length]
                break
        text = text.rstrip()
        new = text[len(self.shown) :]
        self.shown += new
        return new

    def rest(self, final: str) -> str:
        """What the whole reply shows beyond what has been shown."""
        return final[len(self.shown) :]


async def stream(
    service: ChatService, request: CompletionRequest, asked: ChatRequest
) -> AsyncGenerator[str]:
    """The events of one completion. Closing the iterator cancels it.

    The last choice bears the exact tokens, as the answer in one piece does. Raises what
    `ChatService.complete` raises before the first token; later errors are an event.
    """
    tokens: asyncio.Queue[int | None] = asyncio.Queue()
    task = asyncio.ensure_future(service.complete(request, on_token=tokens.put_nowait))
    task.add_done_callback(lambda _: tokens.put_nowait(None))
    text = VisibleText(service.reply_text)
    begun = False
    try:
        while (token := await tokens.get()) is not None:
            new = text.add(token)
            if new or not begun:
                yield _event(_chunk(asked, {"role": "assistant", "content": new}))
                begun = True
        completion = await task
    except JourneymanError as error:
        if not begun:
            raise
        yield _event({"error": {"message": str(error), "type": type(error).__name__}})
        return
    finally:
        task.cancel()
    for event in _last_chunks(service, asked, completion, text):
        yield _event(event)
    yield "data: [DONE]\n\n"


def _last_chunks(
    service: ChatService, asked: ChatRequest, completion: Completion, text: VisibleText
) -> list[dict[str, Any]]:
    message = reply_message(completion.message)
    delta: dict[str, Any] = {"content": text.rest(message["content"] or "")}
    if "tool_calls" in message:
        calls = enumerate(message["tool_calls"])
        delta["tool_calls"] = [{"index": index, **call} for index, call in calls]
    whole = response(completion, asked, service.token_texts(completion.token_ids))
    (choice,) = whole["choices"]
    del choice["message"]
    chunks = [_chunk(asked, delta, **choice)]
    if asked.stream_options and asked.stream_options.include_usage:
        chunks.append({**_chunk(asked, {}), "choices": [], "usage": whole["usage"]})
    return chunks


def _chunk(asked: ChatRequest, delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "model": asked.model,
        "choices": [{"index": 0, "finish_reason": None, **choice, "delta": delta}],
    }


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
