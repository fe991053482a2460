"""The turn loop: every ending, a valid history at each, and exact token streams."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journeyman.agent import prompt
from journeyman.agent.conversation import Conversation
from journeyman.agent.counting import EstimatedCounter, ExactCounter
from journeyman.agent.loop import run_to_stop
from journeyman.agent.tools import Toolbox, Workspace, specs
from journeyman.chat import ChatFormat
from journeyman.types import (
    Budget,
    Completion,
    CompletionRequest,
    EngineError,
    Failure,
    FailureKind,
    Message,
    SandboxExhausted,
    StopReason,
)

Outcome = tuple[StopReason, Failure | None, Conversation, list[tuple[str, dict[str, Any]]]]


@pytest.fixture
def play(chat: ChatFormat, workspace: Workspace) -> Callable[..., Outcome]:
    """Run one loop to its end and check what must hold after any of them."""

    def run(sampler: Any, budget: Budget | None = None, instruction: str = "Fix it.") -> Outcome:
        budget = budget or Budget()
        talk = Conversation(
            "c",
            prompt.opening(instruction),
            specs(),
            ExactCounter(chat),
            budget_tokens=budget.tokens,
            seed=3,
        )
        events: list[tuple[str, dict[str, Any]]] = []
        toolbox = Toolbox(workspace)
        stop, failure = asyncio.run(
            run_to_stop(talk, sampler, toolbox, budget, lambda t, d: events.append((t, d)))
        )
        for turn in talk.turns:
            assert [c.id for c in turn.reply.tool_calls] == [r.tool_call_id for r in turn.results]
        for stream in talk.recorder.streams():
            assert len(stream.token_ids) <= budget.tokens
        return stop, failure, talk, events

    return run


def test_read_edit_submit_is_one_stream_with_the_sampled_tokens_marked(
    play: Any, scripted: Any, chat: ChatFormat, call: Any, workspace: Workspace
) -> None:
    file = Path(workspace.workdir) / "a.py"
    file.write_text("def f(a):\n    return a + 1\n")
    calls = [
        ("read", {"file_path": "a.py", "offset": 1, "limit": 2}),
        ("edit", {"file_path": "a.py", "old_string": "a + 1", "new_string": "a - 1"}),
        ("submit", {}),
    ]
    replies = [call(name, **arguments) for name, arguments in calls]
    stop, failure, talk, events = play(scripted(*replies))
    assert (stop, failure) == (StopReason.SUBMITTED, None)
    assert file.read_text() == "def f(a):\n    return a - 1\n"
    assert [r.content for t in talk.turns for r in t.results] == [
        "1-2 of 2\ndef f(a):\n    return a + 1",
        "edited line 2",
        "submitted",
    ]
    (stream,) = talk.recorder.streams()
    sampled = [t for t, on in zip(stream.token_ids, stream.loss_mask, strict=True) if on]
    assert sampled == [t for r in replies for t in [*chat.encode(r), chat.end_of_turn]]
    assert {v for v, on in zip(stream.versions, stream.loss_mask, strict=True) if on} == {7}
    # The model saw everything but the last result, exactly as rendering the whole gives it.
    seen = chat.render(talk.messages[:-1], specs())
    assert list(stream.token_ids) == seen[: len(stream.token_ids)]
    assert [t for t, _ in events] == ["reply", "call", "result"] * 3


def test_the_opening_with_all_tools_costs_few_tokens(chat: ChatFormat) -> None:
    empty = chat.render([Message(role="user", content="")])[len(chat.render([])) :]
    whole = chat.render(prompt.opening(""), specs())
    assert len(whole) - len(empty) <= 130


def test_a_reply_without_a_call_hands_the_word_back(play: Any, scripted: Any) -> None:
    stop, _, talk, _ = play(scripted("The test is wrong, not the code."))
    assert stop is StopReason.ANSWERED
    assert talk.turns[0].results == ()


def test_an_invalid_call_gets_an_error_and_the_loop_goes_on(
    play: Any, scripted: Any, call: Any
) -> None:
    model = scripted(
        '<tool_call>{"name": "read", "argu</tool_call>',
        call("fly", to="moon"),
        call("read"),
        call("submit"),
    )
    stop, failure, talk, _ = play(model)
    assert (stop, failure) == (StopReason.SUBMITTED, None)
    said = [turn.results[0].content for turn in talk.turns]
    assert said[0].startswith("error: invalid JSON")
    assert said[1] == "error: no tool 'fly'; there are bash, read, edit, grep, submit"
    assert said[2].startswith("error: file_path is missing")


def test_repairs_are_recorded_in_the_turn_and_the_model_keeps_its_own_words(
    play: Any, scripted: Any, call: Any
) -> None:
    model = scripted(
        '<tool_call>{"name": "Bash", "arguments": {"cmd": "echo hi",}}', call("submit")
    )
    _, _, talk, _ = play(model)
    (used,) = talk.turns[0].reply.tool_calls
    assert used.repairs == (
        "closing tag added",
        "trailing comma removed",
        "tool Bash read as bash",
        "cmd renamed command",
    )
    assert talk.turns[0].results[0].content == "hi"
    assert model.requests[1].messages[2].content.startswith('<tool_call>{"name": "Bash"')


def test_the_turn_limit_ends_the_loop(play: Any, scripted: Any, call: Any) -> None:
    model = scripted(*[call("bash", command="true")] * 3)
    stop, _, talk, _ = play(model, Budget(turns=3))
    assert (stop, len(talk.turns)) == (StopReason.TURNS, 3)


def test_a_reply_that_fills_the_budget_ends_the_loop_and_is_not_acted_on(
    play: Any, scripted: Any, call: Any, workspace: Workspace
) -> None:
    long = call("bash", command="touch done") + " and so on" * 400
    stop, _, talk, _ = play(scripted(long), Budget(tokens=300, reply_tokens=300))
    assert stop is StopReason.TOKENS
    assert talk.turns[0].truncated
    assert talk.turns[0].results[0].content == "error: cut off"
    assert not (Path(workspace.workdir) / "done").exists()
    assert len(talk.recorder.streams()[0].token_ids) == 300


def test_a_reply_over_its_own_limit_ends_the_loop(play: Any, scripted: Any) -> None:
    model = scripted("word " * 50)
    stop, _, talk, _ = play(model, Budget(reply_tokens=20))
    assert (stop, model.requests[0].max_tokens) == (StopReason.TOKENS, 20)
    assert sum(talk.recorder.streams()[0].loss_mask) == 20


def test_results_that_leave_no_room_end_the_loop_before_the_model_is_asked(
    play: Any, scripted: Any, call: Any
) -> None:
    model = scripted(call("bash", command="seq 1 500"), call("submit"))
    stop, _, talk, _ = play(model, Budget(tokens=400))
    assert stop is StopReason.TOKENS
    assert len(model.requests) == 1
    assert talk.turns[0].results[0].content.startswith("1\n2\n")


@pytest.mark.parametrize("tokens", range(150, 260, 7))
def test_no_stream_outgrows_its_budget(play: Any, scripted: Any, call: Any, tokens: int) -> None:
    play(scripted(*[call("bash", command="echo a; echo b")] * 8), Budget(tokens=tokens))


def test_a_deadline_in_a_tool_leaves_the_call_with_a_result(
    play: Any, scripted: Any, call: Any
) -> None:
    began = time.monotonic()
    stop, failure, talk, _ = play(
        scripted(call("bash", command="sleep 50")), Budget(deadline_s=0.3)
    )
    assert time.monotonic() - began < 40
    assert (stop, failure) == (StopReason.DEADLINE, None)
    assert talk.turns[0].results[0].content == "interrupted"


def test_a_deadline_in_the_model_leaves_the_history_before_it(play: Any, scripted: Any) -> None:
    async def slow(_: CompletionRequest) -> str:
        await asyncio.sleep(30)
        return ""

    stop, _, talk, _ = play(scripted(slow), Budget(deadline_s=0.2))
    assert stop is StopReason.DEADLINE
    assert [m.role for m in talk.messages] == ["system", "user"]


def test_a_dead_engine_and_a_dead_sandbox_are_infra(
    play: Any, scripted: Any, call: Any, workspace: Workspace
) -> None:
    async def dead(_: CompletionRequest) -> str:
        raise EngineError("the engine is gone")

    stop, failure, _, _ = play(scripted(dead))
    assert stop is StopReason.FAILED
    assert failure is not None and failure.kind is FailureKind.INFRA
    asyncio.run(workspace.sandbox.close())
    for model in (
        scripted(call("bash", command="ls")),
        scripted(call("read", file_path="a") + call("read", file_path="b")),
    ):
        stop, failure, talk, _ = play(model)
        assert failure is not None and failure.kind is FailureKind.INFRA
        assert failure.cause == "SandboxGone"
        assert talk.turns[-1].results[-1].content == "interrupted"


def test_an_exception_of_our_own_is_a_bug_with_its_trace(play: Any, scripted: Any) -> None:
    async def broken(_: CompletionRequest) -> str:
        raise KeyError("x")

    _, failure, _, _ = play(scripted(broken))
    assert failure is not None and failure.kind is FailureKind.BUG
    assert failure.cause == "KeyError" and "in broken" in failure.detail


def test_reads_of_one_reply_run_together_and_answer_in_order(
    play: Any, scripted: Any, call: Any, workspace: Workspace
) -> None:
    root = Path(workspace.workdir)
    for n in range(8):
        (root / f"f{n}").write_text(f"text {n}\n")
    reply = "".join(call("read", file_path=f"f{n}") for n in range(8))
    _, _, talk, _ = play(scripted(reply, call("submit")), Budget(tokens=2000, reply_tokens=900))
    said = [r.content for r in talk.turns[0].results]
    assert said == [f"1-1 of 1\ntext {n}" for n in range(8)]


def test_two_edits_of_one_file_in_one_reply_both_land_in_order(
    play: Any, scripted: Any, call: Any, workspace: Workspace
) -> None:
    file = Path(workspace.workdir) / "f"
    file.write_text("a\n")
    reply = (
        call("edit", file_path="f", old_string="a", new_string="b")
        + call("read", file_path="f")
        + call("edit", file_path="f", old_string="b", new_string="c")
        + call("submit")
        + call("edit", file_path="f", old_string="c", new_string="d")
    )
    stop, _, talk, _ = play(scripted(reply), Budget(reply_tokens=500))
    assert stop is StopReason.SUBMITTED
    assert file.read_text() == "c\n"
    assert [r.content for r in talk.turns[0].results] == [
        "edited line 1",
        "1-1 of 1\nb",
        "edited line 1",
        "submitted",
        "error: already submitted",
    ]


def test_each_request_of_a_seeded_session_has_its_own_seed(
    play: Any, scripted: Any, call: Any
) -> None:
    model = scripted(call("bash", command="true"), call("submit"))
    play(model)
    again = scripted(call("bash", command="true"), call("submit"))
    play(again)
    seeds = [r.seed for r in model.requests]
    assert len(set(seeds)) == 2
    assert seeds == [r.seed for r in again.requests]


def test_an_edited_history_starts_a_new_stream(chat: ChatFormat) -> None:
    from journeyman.agent.recorder import StreamRecorder

    def completion(prompt_ids: tuple[int, ...], ids: tuple[int, ...]) -> Completion:
        return Completion(
            message=Message(role="assistant", content=""),
            stop="end_of_turn",
            prompt_token_ids=prompt_ids,
            token_ids=ids,
            logprobs=(-1.0,) * len(ids),
            versions=(2,) * len(ids),
        )

    recorder = StreamRecorder()
    recorder.add(completion((1, 2), (7, 8)))
    recorder.add(completion((1, 2, 7, 8, 3), (9,)))
    recorder.add(completion((1, 2, 3), (5,)))
    first, second = recorder.streams()
    assert first.token_ids == (1, 2, 7, 8, 3, 9)
    assert first.loss_mask == (False, False, True, True, False, True)
    assert first.logprobs == (0.0, 0.0, -1.0, -1.0, 0.0, -1.0)
    assert first.versions == (-1, -1, 2, 2, -1, 2)
    assert second.token_ids == (1, 2, 3, 5)


def test_estimates_are_not_below_the_exact_count(chat: ChatFormat) -> None:
    for text in ("def f(a, b=1):\n    return {**a, 'b': b}\n" * 9, "A plain sentence. " * 20):
        messages = prompt.opening(text)
        exact = ExactCounter(chat).prompt(messages, specs())
        assert EstimatedCounter().prompt(messages, specs()) >= exact


def test_reads_of_one_reply_wait_together_not_in_turn(
    play: Any, scripted: Any, call: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = 0
    most = 0
    read_file = workspace.sandbox.read_file

    async def slow(path: str, *, max_bytes: int = 0) -> bytes:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.05)
        waiting -= 1
        return await read_file(path, max_bytes=max_bytes)

    monkeypatch.setattr(workspace.sandbox, "read_file", slow)
    reply = call("read", file_path="a") * 8 + call("bash", command="true") + call("submit")
    play(scripted(reply), Budget(tokens=2000, reply_tokens=900))
    assert most == 8


def test_a_sandbox_that_its_own_limits_ended_is_the_policys_doing(
    play: Any, scripted: Any, call: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exhausted(*_: Any, **__: Any) -> Any:
        raise SandboxExhausted("out of memory")

    monkeypatch.setattr(workspace.sandbox, "exec", exhausted)
    stop, failure, talk, _ = play(scripted(call("bash", command="bomb")))
    assert stop is StopReason.FAILED
    assert failure is not None and failure.kind is FailureKind.POLICY
    assert len(talk.recorder.streams()) == 1
