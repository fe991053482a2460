"""Who gets in by the E2B-compatible face, and who does not."""

import base64
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from journeyman.sandbox.client import SandboxClient, TemplateSpec
from journeyman.types import Environment

from .e2b_service import Face, face


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e2b")


@pytest.fixture(scope="module")
def here(state: Path) -> Iterator[Face]:
    with face(state) as found:
        yield found


@pytest.fixture(scope="module")
def box(here: Face) -> dict[str, Any]:
    """A sandbox of the first tenant, with a file in it."""
    made = call(here, "POST", "/sandboxes", json={"templateID": "base", "timeout": 600})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    assert inside(here, found, "POST", "/files?path=secret", content=b"secret").status_code == 200
    return found


def call(here: Face, method: str, path: str, key: str = "", **options: Any) -> httpx.Response:
    headers = {"X-API-KEY": key or here.key, **options.pop("headers", {})}
    return httpx.request(
        method, here.url + path, headers=headers, timeout=60, trust_env=False, **options
    )


def inside(
    here: Face, box: dict[str, Any], method: str, path: str, **options: Any
) -> httpx.Response:
    """A request into the sandbox, with its token unless another is given."""
    headers = {
        "E2b-Sandbox-Id": box["sandboxID"],
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": box["envdAccessToken"],
        **options.pop("headers", {}),
    }
    return call(here, method, path, headers=headers, **options)


def test_a_key_that_is_unknown_opens_nothing(here: Face, box: dict[str, Any]) -> None:
    for key in ("e2b_" + "0" * 40, "x"):
        assert call(here, "GET", "/sandboxes", key=key).status_code == 401
        assert call(here, "DELETE", f"/sandboxes/{box['sandboxID']}", key=key).status_code == 401


def test_another_tenants_key_sees_nothing(here: Face, box: dict[str, Any]) -> None:
    one = f"/sandboxes/{box['sandboxID']}"
    unknown = "/sandboxes/sb-000000000000"
    calls = [
        *(("GET", ""), ("DELETE", ""), ("POST", "/connect"), ("POST", "/pause")),
        *(("POST", "/fork"), ("POST", "/snapshots"), ("GET", "/metrics")),
    ]
    for method, path in calls:
        theirs = call(here, method, one + path, key=here.other_key)
        nobodys = call(here, method, unknown + path, key=here.other_key)
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(box["sandboxID"], "") == nobodys.text.replace(
            "sb-000000000000", ""
        )
    assert call(here, "GET", "/v2/sandboxes", key=here.other_key).json() == []
    kept = call(here, "POST", one + "/snapshots", json={}).json()["snapshotID"]
    body = {"templateID": kept}
    assert call(here, "POST", "/v2/sandboxes", key=here.other_key, json=body).status_code == 404
    assert call(here, "GET", "/snapshots", key=here.other_key).json() == []
    assert call(here, "DELETE", f"/templates/{kept}", key=here.other_key).status_code == 404
    assert call(here, "DELETE", f"/templates/{kept}").status_code == 204


def test_templates_of_tasks_are_not_for_tenants(here: Face, state: Path) -> None:
    import asyncio

    async def build() -> str:
        async with SandboxClient(f"unix://{state / 's'}") as client:
            return await client.build_template(TemplateSpec())

    body = {"templateID": asyncio.run(build())}
    assert call(here, "POST", "/sandboxes", json=body).status_code == 404


def test_a_wrong_token_gets_no_further(here: Face, box: dict[str, Any]) -> None:
    other = call(here, "POST", "/sandboxes", json={"templateID": "base"}).json()
    for token in ("", "x", other["envdAccessToken"]):
        headers = {"X-Access-Token": token}
        started = inside(here, box, "POST", "/process.Process/List", json={}, headers=headers)
        assert (started.status_code, started.json()["code"]) == (401, "unauthenticated")
        assert inside(here, box, "GET", "/files?path=secret", headers=headers).status_code == 401
        written = inside(here, box, "POST", "/files?path=x", content=b"x", headers=headers)
        assert written.status_code == 401
    call(here, "DELETE", f"/sandboxes/{other['sandboxID']}")


def signed(box: dict[str, Any], path: str, operation: str, expiration: str = "") -> str:
    parts = [path, operation, "", box["envdAccessToken"], *([expiration] if expiration else [])]
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    return "v1_" + base64.b64encode(digest).rstrip(b"=").decode()


def by_address(here: Face, box: dict[str, Any], method: str, **query: str) -> int:
    headers = {"X-Access-Token": "", "Authorization": ""}
    answer = inside(here, box, method, "/files", params=query, headers=headers, content=b"new")
    return answer.status_code


def test_signed_addresses(here: Face, box: dict[str, Any]) -> None:
    later, before = str(int(time.time()) + 60), str(int(time.time()) - 1)
    read = signed(box, "secret", "read")
    assert by_address(here, box, "GET", path="secret", signature=read) == 200
    timed = {"path": "secret", "signature": signed(box, "secret", "read", later)}
    assert by_address(here, box, "GET", **timed, signature_expiration=later) == 200
    # Another path, another operation, another user, a later end, an end that is past.
    assert by_address(here, box, "GET", path="/etc/shadow", signature=read) == 401
    assert by_address(here, box, "POST", path="secret", signature=read) == 401
    assert by_address(here, box, "GET", path="secret", username="root", signature=read) == 401
    longer = str(int(later) + 1000)
    assert by_address(here, box, "GET", **timed, signature_expiration=longer) == 401
    assert by_address(here, box, "GET", **timed) == 401
    over = {"path": "secret", "signature": signed(box, "secret", "read", before)}
    assert by_address(here, box, "GET", **over, signature_expiration=before) == 401


def test_web_pages_are_refused(here: Face, box: dict[str, Any]) -> None:
    headers = {"Origin": "http://127.0.0.1"}
    assert call(here, "GET", "/sandboxes", headers=headers).status_code == 403
    assert inside(here, box, "GET", "/files?path=secret", headers=headers).status_code == 403


def test_sandboxes_of_the_socket_are_out_of_reach(here: Face, state: Path) -> None:
    """They have no access token: the empty one must not open them."""
    import asyncio

    async def main() -> None:
        async with SandboxClient(f"unix://{state / 's'}") as client:
            template = await client.build_template(TemplateSpec())
            mine = await client.create(Environment(template=template))
            found = {"sandboxID": mine.id, "envdAccessToken": ""}
            assert inside(here, found, "GET", "/health").status_code == 502
            assert call(here, "GET", f"/sandboxes/{mine.id}").status_code == 404
            await mine.close()

    asyncio.run(main())


def test_a_path_does_not_leave_the_guest(here: Face, box: dict[str, Any]) -> None:
    for path in ("../../../../../../etc/hostname", "/proc/1/root/etc/hostname"):
        answer = inside(here, box, "GET", "/files", params={"path": path})
        assert answer.status_code in (400, 403, 404, 200)
        if answer.status_code == 200:
            assert answer.text.strip() == box["sandboxID"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"templateID": "base", "timeout": -1},
        {"templateID": "base", "timeout": 10**9},
        {"templateID": "base", "timeout": float("1e400")},
        {"templateID": "base", "metadata": {"a": 1}},
        {"templateID": "base", "envVars": [1]},
        {"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]},
    ],
)
def test_bad_requests_are_told_so(here: Face, body: dict[str, Any]) -> None:
    import json

    answer = call(here, "POST", "/sandboxes", content=json.dumps(body))
    assert answer.status_code in (400, 404)
    assert answer.json()["message"]


def test_the_same_key_makes_one_sandbox(here: Face) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"templateID": "base", "timeout": 60}
    made = [call(here, "POST", "/sandboxes", headers=headers, json=body).json() for _ in range(2)]
    assert made[0]["sandboxID"] == made[1]["sandboxID"]
    others = call(here, "POST", "/sandboxes", key=here.other_key, headers=headers, json=body)
    assert others.json()["sandboxID"] != made[0]["sandboxID"]


def test_pages_of_a_list(here: Face) -> None:
    for number in range(3):
        body = {"templateID": "base", "metadata": {"page": "yes", "n": str(number)}}
        call(here, "POST", "/sandboxes", json=body)
    query = {"metadata": "page=yes", "limit": "2", "order": "asc"}
    first = call(here, "GET", "/v2/sandboxes", params=query)
    query["nextToken"] = first.headers["X-Next-Token"]
    second = call(here, "GET", "/v2/sandboxes", params=query)
    found = [one["metadata"]["n"] for one in first.json() + second.json()]
    assert found == ["0", "1", "2"]
    assert "X-Next-Token" not in second.headers
