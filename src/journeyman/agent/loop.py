"""The turn loop: complete, run the calls, append, until something ends it."""

import asyncio
import time
import traceback
from collections.abc import Callable
from typing import Any

from journeyman.agent.conversation import Conversation
from journeyman.agent.tools import CallOutcome, Toolbox
from journeyman.types import (
    Budget,
    Failure,
    FailureKind,
    InfraError,
    Message,
    Sampler,
    StopReason,
)

MIN_REPLY_TOKENS = 8
"""With less room than this no call can be written."""

Emit = Callable[[str, dict[str, Any]], None]
"""Called with the type and the data of each event, in order."""


async def run_turns(
    talk: Conversation, sampler: Sampler, toolbox: Toolbox, budget: Budget, emit: Emit
) -> StopReason:
    """Consumes replies, produces turns. Waits for the model or for a tool, never for a person.

    The history is valid at every await: a call that was cut short has the result "interrupted".
    Raises what sampler and sandbox raise.
    """
    for _ in range(budget.turns):
        room = talk.room()
        if room < MIN_REPLY_TOKENS:
            return StopReason.TOKENS
        began = time.monotonic()
        completion = await sampler.complete(talk.request(min(room, budget.reply_tokens)))
        talk.add_reply(completion, time.monotonic() - began)
        emit("reply", {"content": completion.message.content, "stop": completion.stop})
        if completion.stop == "cancelled":
            await answer_unrun(talk, completion.message, emit)
            return StopReason.CANCELLED
        if completion.stop != "end_of_turn":
            await answer_unrun(talk, completion.message, emit)
            return StopReason.TOKENS
        if not completion.message.tool_calls:
            return StopReason.ANSWERED
        outcomes = await answer(talk, toolbox, completion.message, emit)
        if any(outcome.submitted for outcome in outcomes):
            return StopReason.SUBMITTED
    return StopReason.TURNS


async def answer(
    talk: Conversation, toolbox: Toolbox, reply: Message, emit: Emit
) -> list[CallOutcome]:
    """Run the calls of a reply; each has a result in the history afterwards, come what may."""
    outcomes = [CallOutcome(call) for call in reply.tool_calls]
    for call in reply.tool_calls:
        emit("call", call.model_dump(mode="json"))
    began = time.monotonic()
    try:
        await toolbox.run(outcomes)
    finally:
        _record(talk, outcomes, time.monotonic() - began, emit)
    return outcomes


async def answer_unrun(talk: Conversation, reply: Message, emit: Emit) -> None:
    """A reply that was cut off is not acted on: its calls may not be what was meant."""
    if reply.tool_calls:
        outcomes = [CallOutcome(call, text="error: cut off") for call in reply.tool_calls]
        _record(talk, outcomes, 0.0, emit)


def _record(talk: Conversation, outcomes: list[CallOutcome], tools_s: float, emit: Emit) -> None:
    talk.add_results(outcomes, tools_s)
    for outcome in outcomes:
        emit(
            "result",
            {"id": outcome.call.id, "status": outcome.status, "content": outcome.text},
        )


async def run_to_stop(
    talk: Conversation, sampler: Sampler, toolbox: Toolbox, budget: Budget, emit: Emit
) -> tuple[StopReason, Failure | None]:
    """`run_turns` within its deadline, with every ending put into a word. Never raises."""
    try:
        async with asyncio.timeout(budget.deadline_s) as deadline:
            return await run_turns(talk, sampler, toolbox, budget, emit), None
    except asyncio.CancelledError:
        return StopReason.CANCELLED, None
    except InfraError as error:
        return StopReason.FAILED, error.failure()
    except Exception as error:
        if isinstance(error, TimeoutError) and deadline.expired():
            return StopReason.DEADLINE, None
        detail = "".join(traceback.format_exception(error))
        bug = Failure(kind=FailureKind.BUG, cause=type(error).__name__, detail=detail)
        return StopReason.FAILED, bug
