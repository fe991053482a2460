import pytest

from journeyman.tasks.verdict import NoVerdict, VerdictFiles, parse_reward


@pytest.mark.parametrize(
    ("text", "json", "reward"),
    [
        (b"1\n", None, 1.0),
        (b"0", None, 0.0),
        (b" 0.25 \n", None, 0.25),
        (None, b'{"reward": 1}', 1.0),
        (None, b'{"accuracy": 0.5}', 0.5),
        (None, b"1.0", 1.0),
        (b"1", b'{"reward": 1.0, "other": 7}', 1.0),
    ],
)
def test_one_number_is_the_reward(text: bytes | None, json: bytes | None, reward: float) -> None:
    assert parse_reward(VerdictFiles(text, json)) == reward


@pytest.mark.parametrize(
    ("text", "json", "cause"),
    [
        (None, None, "no verdict"),
        (b"", None, "no verdict"),
        (None, b"{}", "no verdict"),
        (b"1 0", None, "two verdicts"),
        (b"1\n1\n", None, "two verdicts"),
        (b"1", b'{"reward": 0}', "two verdicts"),
        (None, b'{"a": 1, "b": 0}', "two verdicts"),
        (b"nan", None, "not a number"),
        (None, b'{"reward": NaN}', "not a number"),
        (None, b'{"reward": true}', "not a number"),
        (None, b'{"reward": "1"}', "not a number"),
        (b"passed", None, "not a number"),
        (b"\xff\xfe", None, "not a number"),
        (b"1e9", None, "out of range"),
        (b"inf", None, "out of range"),
        (b"-0.1", None, "out of range"),
    ],
)
def test_anything_else_is_no_verdict(text: bytes | None, json: bytes | None, cause: str) -> None:
    with pytest.raises(NoVerdict, match=f"^{cause}$"):
        parse_reward(VerdictFiles(text, json))
