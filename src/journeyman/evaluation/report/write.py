"""Write `report.html` and `report.json`. The page needs no network and runs no script."""

import os
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from journeyman.evaluation.report import drawing
from journeyman.evaluation.report.data import ReportData, gather
from journeyman.evaluation.report.tokens import Decode, TokenSpan, sampled_runs
from journeyman.store import Store
from journeyman.types import Episode, Message, Turn, Value

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


class TurnView(Value):
    """One turn to show. `spans` is None where the stream does not tell replies apart."""

    turn: Turn
    spans: tuple[TokenSpan, ...] | None


class EpisodeView(Value):
    """One episode to show."""

    episode: Episode
    why: str
    turns: tuple[TurnView, ...]
    num_tokens: int

    @property
    def prompt(self) -> tuple[Message, ...]:
        return self.episode.prompt


def write_report(store: Store, run: str, run_dir: Path, decode: Decode) -> ReportData:
    """Write `report.html` and `report.json` into `run_dir`, each whole or not at all.

    `decode` turns token ids into text. Raises UserError for an unknown run.
    """
    data = gather(store, run)
    episodes = [store.episode(summary.id) for summary in data.episodes]
    run_dir.mkdir(parents=True, exist_ok=True)
    _replace(run_dir / "report.html", render(data, episodes, decode))
    _replace(run_dir / "report.json", data.model_dump_json(indent=1))
    return data


def render(data: ReportData, episodes: list[Episode], decode: Decode) -> str:
    """The page. Whatever came out of an episode is shown as text, never as markup."""
    environment = Environment(
        loader=PackageLoader("journeyman.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": _percent,
        "points": _points,
        "doubt": _doubt,
        "visible": visible,
    }
    views = [episode_view(episode, data.notes.get(episode.id, ""), decode) for episode in episodes]
    return environment.get_template("report.html.j2").render(
        data=data,
        views=views,
        charts={name: Markup(svg) for name, svg in _charts(data).items()},
        results={result.name: result for result in data.results},
    )


def episode_view(episode: Episode, why: str, decode: Decode) -> EpisodeView:
    """Pair each turn with the tokens sampled for it."""
    runs = [run for stream in episode.streams for run in sampled_runs(stream, decode)]
    paired: list[list[TokenSpan] | None] = [*runs]
    if len(runs) != len(episode.turns):
        paired = [None] * len(episode.turns)
    turns = tuple(
        TurnView(turn=turn, spans=tuple(spans) if spans is not None else None)
        for turn, spans in zip(episode.turns, paired, strict=True)
    )
    tokens = sum(len(stream.token_ids) for stream in episode.streams)
    return EpisodeView(episode=episode, why=why, turns=turns, num_tokens=tokens)


def visible(text: str) -> str:
    """Characters that steer a terminal or the direction of writing, made to be seen."""
    return _STEERING.sub(lambda match: _shown(match.group()), text)


def _shown(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"\u27e8U+{code:04X}\u27e9"


def _charts(data: ReportData) -> dict[str, str]:
    return {
        "rates": drawing.rates(data.results, "Held-out tasks solved"),
        "reward": drawing.curves({"reward": data.reward}, "Reward by step"),
        "held_out": drawing.curves({"held out": data.held_out}, "Held-out tasks solved by step"),
        "timings": drawing.stacked(data.timings_s, "Seconds of each step by stage"),
    }


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _doubt(probability: float) -> int:
    """0 for a certain token to 9 for one the policy hardly expected."""
    thresholds = (0.99, 0.95, 0.85, 0.7, 0.5, 0.3, 0.15, 0.05, 0.01)
    return sum(probability < threshold for threshold in thresholds)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
