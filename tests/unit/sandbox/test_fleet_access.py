"""Who may speak to a fleet, and how long silence lasts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from journeyman.sandbox.fleet.config import FleetConfig, read_config
from journeyman.sandbox.fleet.guard import Guard
from journeyman.sandbox.fleet.messages import FleetTimes
from journeyman.sandbox.fleet.schema import FLEET
from journeyman.sandbox.fleet.tokens import Bearer, Tokens
from journeyman.store.database import Database
from journeyman.types.failure import UserError


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[Tokens]:
    database = Database(f"sqlite:///{tmp_path / 'fleet.db'}", FLEET)
    yield Tokens(database)
    database.close()


def test_a_ticket_admits_one_node_once(tokens: Tokens) -> None:
    ticket = tokens.add_ticket()
    token = tokens.redeem(ticket, "a")
    assert tokens.bearer(token) == Bearer("node", "a")
    with pytest.raises(UserError, match="ticket is void"):
        tokens.redeem(ticket, "b")


def test_a_ticket_does_not_take_another_nodes_place(tokens: Tokens) -> None:
    token = tokens.redeem(tokens.add_ticket(), "a")
    ticket = tokens.add_ticket()
    with pytest.raises(UserError, match="has joined before"):
        tokens.redeem(ticket, "a")
    assert tokens.bearer(token) == Bearer("node", "a")
    # The failed attempt has not used the ticket up, and a removed node may come again.
    tokens.revoke_node("a")
    assert tokens.bearer(token) is None
    assert tokens.bearer(tokens.redeem(ticket, "a")) == Bearer("node", "a")


def test_an_old_ticket_is_void(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = tokens.add_ticket(valid_s=60)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(UserError, match="ticket is void"):
        tokens.redeem(ticket, "a")


def test_a_ticket_is_no_token_and_a_token_no_ticket(tokens: Tokens) -> None:
    assert tokens.bearer(tokens.add_ticket()) is None
    with pytest.raises(UserError, match="ticket is void"):
        tokens.redeem(tokens.add_tenant("t"), "a")
    assert tokens.bearer("") is None


def test_only_digests_are_kept(tokens: Tokens, tmp_path: Path) -> None:
    secrets = [tokens.add_tenant("t"), tokens.add_ticket()]
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"fleet_tokens" in kept
    assert all(secret.encode() not in kept for secret in secrets)


def guarded() -> FastAPI:
    app = FastAPI()
    app.add_middleware(
        Guard,
        who=lambda token: Bearer("tenant", "me") if token == "right" else None,
        open_paths=("/open",),
    )

    @app.get("/{path:path}")
    async def name(request: Request) -> str:
        bearer = request.state.bearer
        return bearer.name if bearer else "nobody"

    return app


@pytest.mark.parametrize(
    ("path", "headers", "status", "text"),
    [
        ("/x", {}, 401, "not known"),
        ("/x", {"Authorization": "Bearer wrong"}, 401, "not known"),
        ("/x", {"Authorization": "Basic right"}, 401, "not known"),
        ("/x", {"Authorization": "right"}, 401, "not known"),
        ("/x", {"Authorization": "Bearer right"}, 200, "me"),
        ("/x", {"Authorization": "Bearer right", "Origin": "http://e"}, 403, "web pages"),
        ("/open", {}, 200, "nobody"),
        ("/open/x", {}, 401, "not known"),
    ],
)
def test_the_guard(path: str, headers: dict[str, str], status: int, text: str) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(guarded())
        async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as http:
            return await http.get(path, headers=headers)

    answer = asyncio.run(ask())
    assert (answer.status_code, text in answer.text) == (status, True)


@pytest.mark.parametrize("wrong", [{"lost_after_s": 20.0}, {"fence_after_s": 15.0}])
def test_a_node_has_to_have_stopped_before_it_is_lost(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="or a sandbox would live twice"):
        FleetTimes(**wrong)
    assert FleetTimes().fence_after_s + FleetTimes().fence_s < FleetTimes().lost_after_s


# ---- the configuration


def config_of(tmp_path: Path, text: str) -> FleetConfig:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_config(path)


EC2 = """
[scale]
least = 1
most = 4
[ec2]
fleet = "lab"
region = "eu-central-1"
image_id = "ami-1"
subnet_id = "subnet-1"
security_group_ids = ["sg-1"]
[bootstrap]
control_url = "http://10.0.0.1:8090"
package = "journeyman"
"""


def test_a_whole_configuration_is_read(tmp_path: Path) -> None:
    config = config_of(tmp_path, EC2 + "[fleet]\ncpus = 4\n[scheduler]\nchoices = 2\n")
    assert (config.fleet.cpus, config.scheduler.choices) == (4.0, 2)
    assert config.scale is not None
    assert config.scale.most == 4
    assert config.bootstrap is not None
    assert "JOURNEYMAN_TICKET=" in config.bootstrap.with_ticket("t" * 30).script()
    assert config_of(tmp_path, "") == FleetConfig()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[scale]\nmost = 3\n", "scale would have no effect"),
        ("[scheduler]\nchoises = 3\n", "choises"),
        ("[scale]\nleast = 5\nmost = 3\n", "is more than most"),
        ("scale = [", "is no configuration"),
    ],
)
def test_a_key_without_effect_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        config_of(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml cannot be read"):
        read_config(tmp_path / "absent.toml")


def test_unknown_words_of_a_request_are_refused() -> None:
    wrong: Any = {"beat_every_s": 1, "beats": 2}
    with pytest.raises(ValueError, match="beats"):
        FleetTimes.model_validate(wrong)
