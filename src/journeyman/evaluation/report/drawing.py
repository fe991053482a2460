"""Charts as inline SVG. Colours are CSS variables of the page, so they follow its theme."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from journeyman.evaluation.report.data import Point, Result

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 34
Scale = Callable[[float], float]


def curves(series: Mapping[str, Sequence[Point]], label: str, *, top: float | None = None) -> str:
    """Rates by step with their 95% bands, one colour per series. Empty without points."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    highest = max(point.high if point.high is not None else point.value for point in points)
    ceiling = top if top is not None else _ceiling(highest)
    steps = [point.step for point in points]
    x = _scale(min(steps), max(steps), LEFT + 12, WIDTH - RIGHT - 12)
    y = _scale(0, ceiling, HEIGHT - BOTTOM, TOP)
    parts = [_rate_axis(y, ceiling), _step_axis(x, min(steps), max(steps))]
    for number, (name, line) in enumerate(series.items()):
        parts.append(_line(name, line, x, y, f"var(--series-{number})"))
    return _svg(label, parts)


def rates(results: Sequence[Result], label: str) -> str:
    """One row per evaluation: a bar up to the rate and a whisker over the interval."""
    if not results:
        return ""
    left, row = 210, 44
    height = TOP + row * len(results) + BOTTOM
    ceiling = _ceiling(max(result.high for result in results))
    x = _scale(0, ceiling, left, WIDTH - 64)
    parts = []
    for tick in _ticks(ceiling):
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(_text(x(tick), height - BOTTOM + 18, f"{tick:.0%}", "middle", "tick"))
    for number, result in enumerate(results):
        middle = TOP + row * number + row / 2
        colour = "var(--series-0)" if result.name == "rl" else "var(--quiet)"
        shown = f"{result.title}: {result.solved:.1%} ({result.low:.1%} to {result.high:.1%})"
        parts.append(
            f"<g><title>{escape(shown)}</title>"
            f'<rect x="{left}" y="{middle - 11:.1f}" width="{x(result.solved) - left:.1f}" '
            f'height="22" rx="2" style="fill:{colour}"/>'
            f'<path class="whisker" d="M{x(result.low):.1f} {middle:.1f}H{x(result.high):.1f}'
            f"M{x(result.low):.1f} {middle - 5:.1f}v10M{x(result.high):.1f} {middle - 5:.1f}v10"
            '"/></g>'
        )
        parts.append(_text(left - 10, middle + 4, result.title, "end", "name"))
        parts.append(
            _text(x(result.high) + 8, middle + 4, f"{result.solved:.1%}", "start", "value")
        )
    return _svg(label, parts, height)


def stacked(stages: Mapping[str, Sequence[Point]], label: str) -> str:
    """Seconds of each step, split into stages."""
    steps = sorted({point.step for line in stages.values() for point in line})
    if not steps:
        return ""
    seconds = {(name, p.step): p.value for name, line in stages.items() for p in line}
    totals = {step: sum(seconds.get((name, step), 0.0) for name in stages) for step in steps}
    ceiling = _round_up(max(totals.values()))
    y = _scale(0, ceiling, HEIGHT - BOTTOM, TOP)
    pitch = (WIDTH - LEFT - RIGHT) / len(steps)
    parts = []
    for tick in (0.0, ceiling / 2, ceiling):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:g} s", "end", "tick"))
    every = max(1, -(-len(steps) // 16))
    for column, step in enumerate(steps):
        left = LEFT + pitch * column + min(4.0, pitch * 0.12)
        width = pitch - 2 * min(4.0, pitch * 0.12)
        below = 0.0
        for number, name in enumerate(stages):
            value = seconds.get((name, step), 0.0)
            shown = f"step {step}, {name}: {value:.1f} s of {totals[step]:.1f} s"
            parts.append(
                f'<rect x="{left:.1f}" y="{y(below + value):.2f}" width="{width:.1f}" '
                f'height="{y(below) - y(below + value):.2f}" style="fill:var(--stage-{number})">'
                f"<title>{escape(shown)}</title></rect>"
            )
            below += value
        if column % every == 0:
            parts.append(_text(left + width / 2, HEIGHT - BOTTOM + 18, str(step), "middle", "tick"))
    return _svg(label, parts)


def _line(name: str, line: Sequence[Point], x: Scale, y: Scale, colour: str) -> str:
    banded = [(p, p.low, p.high) for p in line if p.low is not None and p.high is not None]
    parts = []
    if len(banded) > 1:
        upper = [f"{x(p.step):.1f},{y(high):.1f}" for p, _, high in banded]
        lower = [f"{x(p.step):.1f},{y(low):.1f}" for p, low, _ in reversed(banded)]
        outline = " ".join(upper + lower)
        parts.append(f'<polygon class="band" points="{outline}" style="fill:{colour}"/>')
    path = " ".join(f"{x(p.step):.1f},{y(p.value):.1f}" for p in line)
    parts.append(f'<polyline class="line" points="{path}" style="stroke:{colour}"/>')
    for point in line:
        shown = f"{name}, step {point.step}: {point.value:.1%}"
        if point.low is not None and point.high is not None:
            shown += f" ({point.low:.1%} to {point.high:.1%})"
        parts.append(
            f'<circle cx="{x(point.step):.1f}" cy="{y(point.value):.1f}" r="4" '
            f'style="fill:{colour}"><title>{escape(shown)}</title></circle>'
        )
    return "".join(parts)


def _rate_axis(y: Scale, ceiling: float) -> str:
    parts = []
    for tick in _ticks(ceiling):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:.0%}", "end", "tick"))
    return "".join(parts)


def _step_axis(x: Scale, first: int, last: int) -> str:
    every = max(1, -(-(last - first) // 12))
    steps = range(first, last + 1, every)
    return "".join(_text(x(s), HEIGHT - BOTTOM + 18, str(s), "middle", "tick") for s in steps)


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(label: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _scale(first: float, last: float, begin: float, end: float) -> Scale:
    if last == first:
        return lambda value: (begin + end) / 2
    return lambda value: begin + (value - first) / (last - first) * (end - begin)


def _ceiling(highest: float) -> float:
    """Rewards may be above 1: the format term comes on top of the verifier's."""
    if highest > 1 + 1e-9:
        return math.ceil(5 * highest - 1e-9) / 5
    return next(c for c in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if highest <= c + 1e-9)


def _ticks(ceiling: float) -> list[float]:
    return [ceiling * quarter / 4 for quarter in range(5)]


def _round_up(seconds: float) -> float:
    if seconds <= 0:
        return 1.0
    unit: float = 1.0
    while unit * 10 <= seconds:
        unit *= 10
    while unit > seconds:
        unit /= 10
    return next(unit * m for m in (1, 2, 4, 6, 8, 10) if unit * m >= seconds)
