"""The report tells the truth, shows hostile text as text, and needs nothing from outside."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.evaluation.report import drawing, write_report
from journeyman.evaluation.report.data import Point
from journeyman.evaluation.report.tokens import sampled_runs
from journeyman.evaluation.report.write import visible
from journeyman.store import Store
from journeyman.types import TokenStream, UserError

LOADING = {"src", "href", "srcset", "data", "action", "xlink:href", "background"}
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Elements(HTMLParser):
    """Collects every element and checks that they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def page(demo_store: Store, tmp_path: Path, decode_bytes) -> str:
    write_report(demo_store, "demo", tmp_path / "runs" / "demo", decode_bytes)
    return (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")


def test_hostile_output_stays_text(page: str) -> None:
    elements = Elements()
    elements.feed(page)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "img", "iframe", "link", "object", "form", "base"}
    assert not [a for _, attributes in elements.found for a in attributes if a.startswith("on")]
    assert elements.open == []
    assert "&lt;script&gt;alert(" in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_the_page_is_self_contained(page: str) -> None:
    elements = Elements()
    elements.feed(page)
    assert not [a for _, attributes in elements.found for a in attributes if a in LOADING]
    assert not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page


def test_numbers_on_the_page_are_those_of_the_store(
    page: str, demo_store: Store, tmp_path: Path
) -> None:
    told = json.loads((tmp_path / "runs" / "demo" / "report.json").read_text())
    results = {result["name"]: result for result in told["results"]}
    assert list(results) == ["base", "warm", "plateau", "rl", "rl_greedy"]
    assert results["warm"]["rl_gain"] == told["gain"]
    assert results["rl_greedy"]["title"] == "after reinforcement, greedy"
    assert [n for n in results if results[n]["rl_gain"]] == ["base", "warm", "plateau"]
    assert results["rl"]["episodes"] == 256
    assert results["rl"]["failures"] == {"infra": 1}
    difference = results["rl"]["solved"] - results["warm"]["solved"]
    assert told["gain"]["value"] == pytest.approx(difference)
    assert told["gain"]["low"] < difference < told["gain"]["high"]
    assert f"{100 * results['rl']['solved']:.1f}%" in page
    assert [point["step"] for point in told["reward"]] == list(range(1, 13))
    assert list(told["timings_s"]) == ["generate", "sandbox", "grade", "train", "other"]
    unjudged = {"where": "train", "kind": "verifier", "cause": "NoVerdict", "count": 1, "of": 13}
    assert told["failures"] == [unjudged]


def test_ten_episodes_with_a_pair_of_one_task(page: str, tmp_path: Path) -> None:
    assert page.count('<details class="episode">') == 10
    told = json.loads((tmp_path / "runs" / "demo" / "report.json").read_text())
    first, second = told["episodes"][:2]
    assert first["task"] == second["task"]
    assert (first["reward"], second["reward"]) == (0.0, 1.0)
    assert told["notes"][first["id"]] == "same task, before reinforcement: not solved"
    assert any(episode["failure_kind"] == "verifier" for episode in told["episodes"])


def test_every_sampled_token_shows_its_probability(page: str) -> None:
    spans = re.findall(r'<b class="d(\d)" title="([\d.]+)%, token (\d+), policy version 4">', page)
    assert len(spans) > 1000
    for level, percent, _ in spans:
        if float(percent) > 99.05:
            assert level == "0"
        if float(percent) < 0.95:
            assert level == "9"


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path, decode_bytes) -> None:
    store = Store(f"sqlite:///{tmp_path}/empty.db")
    store.create_run("young", {})
    data = write_report(store, "young", tmp_path / "young", decode_bytes)
    assert (data.gain, data.results, data.episodes) == (None, (), ())
    assert "Nothing evaluated yet" in (tmp_path / "young" / "report.html").read_text()


def test_no_password_is_shown(tmp_path: Path, decode_bytes) -> None:
    store = Store(f"sqlite:///{tmp_path}/s.db")
    url = "postgresql://someone:p@ss:word@host/db"
    store.create_run("secret", {"store": {"url": url}, "more": [url, 1]})
    write_report(store, "secret", tmp_path / "out", decode_bytes)
    for name in ("report.html", "report.json"):
        text = (tmp_path / "out" / name).read_text()
        assert "ss:word" not in text
        assert "postgresql://someone:***@host/db" in text


def test_an_unknown_run_writes_nothing(demo_store: Store, tmp_path: Path, decode_bytes) -> None:
    with pytest.raises(UserError, match="no run named 'other'"):
        write_report(demo_store, "other", tmp_path / "other", decode_bytes)
    assert not (tmp_path / "other").exists()


def test_characters_spread_over_tokens_are_shown_whole(decode_bytes) -> None:
    ids = tuple("a☃b".encode())
    stream = TokenStream(
        token_ids=(1, *ids, 2),
        loss_mask=(False, *(True for _ in ids), False),
        logprobs=(0.0, *(-0.5 for _ in ids), 0.0),
        versions=(-1, *(3 for _ in ids), -1),
    )
    (run,) = sampled_runs(stream, decode_bytes)
    assert [span.text for span in run] == ["a", "☃", "b"]
    assert run[1].probability == pytest.approx(0.2231, abs=1e-4)  # exp(-1.5)


def test_steering_characters_are_made_visible() -> None:
    assert visible("a\x1b[31m\u202eb\tc\n\x00") == "a␛[31m⟨U+202E⟩b\tc\n␀"


@given(st.floats(0, 1.5), st.floats(0, 0.5))
def test_rewards_above_one_are_drawn_within_the_chart(value: float, more: float) -> None:
    points = [Point(step=1, value=0.2), Point(step=2, value=value, low=0.0, high=value + more)]
    picture = drawing.curves({"reward": points}, "Reward by step")
    heights = [float(y) for y in re.findall(r'cy="(-?[\d.]+)"', picture)]
    assert len(heights) == 2 and all(0 <= y <= drawing.HEIGHT for y in heights)
