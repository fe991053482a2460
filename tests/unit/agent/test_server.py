"""The agent server over a real socket: sessions, events, cancelling, errors."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from journeyman.agent import AgentClient, AgentServerError, SessionRequest
from journeyman.agent.server import app, serving
from journeyman.chat import ChatFormat
from journeyman.types import (
    Budget,
    CompletionRequest,
    Environment,
    Episode,
    SandboxError,
    StopReason,
    UserError,
)


def served(*arguments: Any, **options: Any) -> AbstractAsyncContextManager[str]:
    return serving(app(*arguments, **options))


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 120))


async def hang(_: CompletionRequest) -> str:
    await asyncio.sleep(60)
    return ""


def request(tmp_path: Path, **changes: Any) -> SessionRequest:
    environment = Environment(template="none", workdir=str(tmp_path))
    return SessionRequest(environment=environment, **changes)


def test_a_session_from_opening_to_its_record(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    stored: list[Episode] = []

    async def store(episode: Episode) -> None:
        stored.append(episode)

    async def body() -> None:
        model = scripted(call("bash", command="cat data"), call("submit"))
        async with served(model, sandboxes, store) as url, AgentClient(url) as client:
            wanted = request(tmp_path, kind="train", task="t1", group="g1", temperature=0.7)
            data = {str(tmp_path / "data"): bytes(range(65, 91)) + b"\xff\xfe"}
            environment = Environment(template="none", files=data, workdir=str(tmp_path))
            session = await client.open(wanted.model_copy(update={"environment": environment}))
            assert session.state == "idle"
            assert await client.episode(session.id) is None
            await client.send(session.id, "Fix it.")
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None
            assert (episode.id, episode.task, episode.group) == (session.id, "t1", "g1")
            assert (episode.kind, episode.stop) == ("train", StopReason.SUBMITTED)
            assert episode.turns[0].results[0].content.startswith("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
            assert len(episode.streams) == 1
            assert stored == [episode]
            assert model.requests[0].temperature == 0.7
            assert [s.id for s in await client.list()] == [session.id]
            await client.close_session(session.id)
            assert model.released == [session.id]
            assert sandboxes.made[0].closed
            assert await client.list() == []
            with pytest.raises(UserError, match="no such session"):
                await client.info(session.id)

    run(body())


def test_two_clients_see_every_event_once_and_a_reconnect_replays_what_was_missed(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted(call("bash", command="echo a"), call("submit"), "Bye.")
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            live = asyncio.create_task(collect(client, session.id))
            await client.send(session.id, "one")
            await client.episode(session.id, wait_s=60)
            first = [event async for event in take(client.events(session.id), 4)]
            await client.send(session.id, "two")
            await client.episode(session.id, wait_s=60)
            await client.close_session(session.id)
            seen = await live
            assert [event.number for event in seen] == list(range(1, len(seen) + 1))
            assert [event.type for event in seen] == [
                *("session", "user", "reply", "call", "result", "reply", "call", "result"),
                *("stop", "user", "reply", "stop", "closed"),
            ]
            assert seen[:4] == first

    async def collect(client: AgentClient, session: str) -> list[Any]:
        return [event async for event in client.events(session)]

    run(body())


async def take(events: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


def test_last_event_id_replays_exactly_what_was_missed(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted(call("submit"))
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            await client.send(session.id, "one")
            await client.episode(session.id, wait_s=60)
            everything = [e async for e in take(client.events(session.id), 6)]
            rest = [e async for e in take(client.events(session.id, after=3), 3)]
            assert rest == everything[3:]

    run(body())


def test_two_messages_at_once_are_queued(scripted: Any, sandboxes: Any, tmp_path: Path) -> None:
    async def body() -> None:
        model = scripted("First.", "Second.")
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            await asyncio.gather(client.send(session.id, "a"), client.send(session.id, "b"))
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None
            asked = [m.content for m in model.requests[1].messages if m.role == "user"]
            assert sorted(asked) == ["a", "b"]
            roles = [m.role for m in model.requests[1].messages]
            assert roles == ["system", "user", "assistant", "user"]
            assert [t.reply.content for t in episode.turns] == ["First.", "Second."]
            assert [r.role for r in episode.turns[0].results] == ["user"]
            assert len(episode.streams) == 1

    run(body())


def test_too_many_waiting_messages_are_refused(
    scripted: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        async with served(scripted(hang), sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            with pytest.raises(UserError, match="16 messages wait already"):
                for _ in range(20):
                    await client.send(session.id, "again")
            assert (await client.cancel(session.id)).state == "idle"

    run(body())


@pytest.mark.parametrize("where", ["model", "tool"])
def test_cancelling_leaves_a_valid_history_and_the_session_goes_on(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path, where: str
) -> None:
    marker = "86397"

    async def body() -> None:
        first = hang if where == "model" else call("bash", command=f"sleep {marker} & wait")
        model = scripted(first, "Yes.")
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            await client.send(session.id, "go")
            await until(lambda: where == "model" or processes(marker))
            assert (await client.cancel(session.id)).stop is StopReason.CANCELLED
            assert not processes(marker)
            await client.send(session.id, "still there?")
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None and episode.stop is StopReason.ANSWERED
            roles = [m.role for m in model.requests[-1].messages]
            between = ["assistant", "tool"] if where == "tool" else []
            assert roles == ["system", "user", *between, "user"]

    run(body())


def processes(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[:2] == [b"sleep", marker.encode()]:
            found.append(entry.parent.name)
    return found


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 (a process of the system gives no event)
        await asyncio.sleep(0.02)


def test_a_lost_client_does_not_stop_the_turn(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted(call("bash", command="sleep 0.3; echo done"), call("submit"))
        async with served(model, sandboxes) as url:
            async with AgentClient(url) as client:
                session = await client.open(request(tmp_path))
                await client.send(session.id, "go")
                async for event in client.events(session.id):
                    if event.type == "call":
                        break
            async with AgentClient(url) as client:
                episode = await client.episode(session.id, wait_s=60)
                assert episode is not None and episode.stop is StopReason.SUBMITTED

    run(body())


def test_an_idle_sandbox_is_put_to_sleep_and_woken_by_a_message(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted("One.", call("submit"))
        async with served(model, sandboxes, idle_s=0.1) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            await client.send(session.id, "go")
            await client.episode(session.id, wait_s=60)
            await until(lambda: sandboxes.made[0].hibernated == 1)
            await client.send(session.id, "more")
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None and episode.stop is StopReason.SUBMITTED

    run(body())


def test_stopping_the_server_closes_every_sandbox(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted(call("bash", command="sleep 86398"))
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            await client.open(request(tmp_path))
            session = await client.open(request(tmp_path))
            await client.send(session.id, "go")
            await until(lambda: processes("86398"))
        assert all(sandbox.closed for sandbox in sandboxes.made)
        assert not processes("86398")

    run(body())


def test_a_failing_store_is_loud(scripted: Any, sandboxes: Any, tmp_path: Path) -> None:
    async def broken(_: Episode) -> None:
        raise OSError("disk full")

    async def body() -> None:
        async with served(scripted("Hi."), sandboxes, broken) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            await client.send(session.id, "go")
            with pytest.raises(Exception, match="a bug in the agent server"):
                await client.episode(session.id, wait_s=60)

    run(body())


def test_a_sandbox_that_will_not_start_is_told_as_what_it_is(scripted: Any, tmp_path: Path) -> None:
    class NoSandboxes:
        async def create(self, environment: Environment, *, lease_s: float = 600.0) -> Any:
            raise SandboxError("the sandbox engine does not start", "see its log")

        async def connect(self, sandbox_id: str) -> Any:
            raise SandboxError("none")

    async def body() -> None:
        async with served(scripted(), NoSandboxes()) as url, AgentClient(url) as client:
            with pytest.raises(SandboxError, match="does not start"):
                await client.open(request(tmp_path))
            assert await client.list() == []

    run(body())


@pytest.mark.parametrize("token", [None, "wrong", "secret2"])
def test_without_the_token_nothing_is_answered(
    scripted: Any, sandboxes: Any, tmp_path: Path, token: str | None
) -> None:
    async def body() -> None:
        async with served(scripted(), sandboxes, token="secret") as url:
            async with AgentClient(url, token="secret") as owner:
                session = await owner.open(request(tmp_path))
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=url, headers=headers) as stranger:
                answers = [
                    await stranger.get("/v1/sessions"),
                    await stranger.get(f"/v1/sessions/{session.id}"),
                    await stranger.get("/v1/sessions/guess"),
                    await stranger.post(
                        f"/v1/sessions/{session.id}/messages", json={"content": "x"}
                    ),
                ]
            assert {a.status_code for a in answers} == {401}
            assert {a.text for a in answers} == {answers[0].text}
            assert session.id not in answers[0].text

    run(body())


@pytest.mark.parametrize(
    ("line", "body", "status"),
    [
        ("POST /v1/sessions", "{", 422),
        ("POST /v1/sessions", '{"colour": 1}', 422),
        ("POST /v1/sessions", "{}", 400),
        ("GET /v1/sessions/0", None, 404),
        ("DELETE /v1/sessions/0", None, 404),
    ],
)
def test_bad_requests_have_an_error_body(
    scripted: Any, sandboxes: Any, line: str, body: str | None, status: int
) -> None:
    async def ask() -> None:
        async with served(scripted(), sandboxes) as url, httpx.AsyncClient(base_url=url) as http:
            answer = await http.request(*line.split(), content=body)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"type", "cause", "cure"}

    run(ask())


def test_an_empty_message_is_refused(scripted: Any, sandboxes: Any, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(scripted(), sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            with pytest.raises(UserError):
                await client.send(session.id, "")

    run(body())


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_an_upload_is_laid_out_before_the_first_message_only(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted(call("bash", command="cat pkg/a.py"), call("submit"))
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path / "work"))
            for hostile in ("../out", "/out", "a/../../out"):
                with pytest.raises(UserError, match="outside its root"):
                    await client.upload(session.id, archive({hostile: b"x"}))
            with pytest.raises(UserError, match="no tar archive"):
                await client.upload(session.id, b"rubbish")
            await client.upload(session.id, archive({"pkg/a.py": b"x = 1\n"}))
            await client.send(session.id, "go")
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None
            assert episode.turns[0].results[0].content == "x = 1"
            with pytest.raises(UserError, match="has begun"):
                await client.upload(session.id, archive({"b": b""}))

    run(body())


def test_no_server_is_an_error_that_names_the_address_and_the_cure() -> None:
    async def body() -> None:
        async with AgentClient("http://127.0.0.1:9") as client:
            with pytest.raises(AgentServerError, match="127.0.0.1:9") as error:
                await client.list()
            assert "journeyman serve" in error.value.cure

    run(body())


def test_the_same_application_runs_in_process(
    scripted: Any, call: Any, sandboxes: Any, tmp_path: Path, chat: ChatFormat
) -> None:
    async def body() -> None:
        application = app(scripted(call("submit")), sandboxes, chat=chat)
        transport = httpx.ASGITransport(application)
        async with AgentClient(transport=transport) as client:
            session = await client.open(request(tmp_path, budget=Budget(tokens=200)))
            await client.send(session.id, "go")
            episode = await client.episode(session.id, wait_s=60)
            assert episode is not None and episode.stop is StopReason.SUBMITTED
            await client.close_session(session.id)

    run(body())


def test_two_hundred_idle_sessions_hold_no_task(
    scripted: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def talk(client: AgentClient) -> None:
        session = await client.open(request(tmp_path))
        await client.send(session.id, "hi")
        assert await client.episode(session.id, wait_s=60) is not None

    async def body() -> None:
        application = app(scripted(*["Hello."] * 200), sandboxes, idle_s=0.05)
        async with AgentClient(transport=httpx.ASGITransport(application)) as client:
            before = len(asyncio.all_tasks())
            await asyncio.gather(*(talk(client) for _ in range(200)))
            await until(lambda: all(sandbox.hibernated for sandbox in sandboxes.made))
            await asyncio.sleep(0.1)
            assert len(sandboxes.made) == 200
            assert len(asyncio.all_tasks()) == before

    run(body())


def test_a_persons_own_command_is_no_part_of_what_the_model_sees(
    scripted: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        model = scripted("Hello.")
        async with served(model, sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path))
            assert await client.run_command(session.id, "echo mine; exit 4") == "mine\nexit 4"
            with pytest.raises(UserError, match="NUL"):
                await client.run_command(session.id, "echo \0")
            await client.send(session.id, "go")
            await client.episode(session.id, wait_s=60)
            assert "mine" not in str(model.requests[0].messages)
            seen = [e async for e in take(client.events(session.id), 2)]
            assert [e.type for e in seen] == ["session", "command"]

    run(body())


def test_a_large_upload_is_taken_and_a_larger_one_refused(
    scripted: Any, sandboxes: Any, tmp_path: Path
) -> None:
    async def body() -> None:
        async with served(scripted(), sandboxes) as url, AgentClient(url) as client:
            session = await client.open(request(tmp_path / "work"))
            await client.upload(session.id, archive({"big": bytes(20 << 20)}))
            assert (tmp_path / "work" / "big").stat().st_size == 20 << 20
            head = f"PUT /v1/sessions/{session.id}/workspace HTTP/1.1\r\nhost: x\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2]))
            writer.write(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
            assert b"413" in await reader.readline()
            writer.close()

    run(body())
