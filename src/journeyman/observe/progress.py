"""Progress with a time estimate, on stderr: bars on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from journeyman.observe.console import console as shared_console


class Stage:
    """One stage of work. `advance` and `note` may be called from any thread."""

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        clock: Callable[[], float],
        limit_s: float | None = None,
        done: int = 0,
    ) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.limit_s = limit_s
        self.done = self._done_before = done
        self.latest_note = ""
        self.watch: Callable[[Stage], None] | None = None
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()

    def advance(self, count: int = 1) -> None:
        """`count` more units are done."""
        with self._lock:
            self.done += count
        self._changed()

    def note(self, text: str) -> None:
        """Show a short remark beside the numbers, in place of the former one."""
        self.latest_note = text
        self._changed()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._begun

    @property
    def remaining_s(self) -> float | None:
        """At the mean pace so far, and at most what is left of `limit_s`; None before the first
        unit is done and where there is no limit."""
        within = None if self.limit_s is None else max(0.0, self.limit_s - self.elapsed_s)
        done_here = self.done - self._done_before
        if done_here <= 0:
            return within
        estimate = self.elapsed_s * max(0, self.total - self.done) / done_here
        return estimate if within is None else min(estimate, within)

    def line(self) -> str:
        """For instance: `held-out: 120/256 episodes (47%), 0:31 gone, about 0:35 left · 21%`."""
        percent = f" ({100 * self.done // self.total}%)" if self.total else ""
        text = f"{self.name}: {self.done}/{self.total} {self.unit}{percent}, "
        text += f"{_clock_text(self.elapsed_s)} gone"
        remaining = self.remaining_s
        if remaining is not None and self.done < self.total:
            text += f", about {_clock_text(remaining)} left"
        return f"{text} · {self.latest_note}" if self.latest_note else text

    def _changed(self) -> None:
        if self.watch is not None:
            self.watch(self)


class _TimeLeft(ProgressColumn):
    """The stage's own estimate: rich's forgets what is older than its window, and with it steps
    of a minute, and knows no limit."""

    def render(self, task: Task) -> Text:
        remaining: float | None = task.fields["stage"].remaining_s
        return Text("–" if remaining is None else _clock_text(remaining))


class Progress:
    """Shows stages while their blocks run; stages may nest and overlap.

        with Progress() as progress, progress.stage("held-out", 256, "episodes") as stage:
            stage.advance()

    On a terminal a bar per stage; elsewhere one line per stage every `interval_s` seconds, even
    when nothing advances, and one at its end.
    """

    def __init__(
        self,
        console: Console | None = None,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or shared_console()
        self._interval_s = interval_s
        self._clock = clock
        self._stages: list[Stage] = []
        self._bars: Bars | None = None
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                _TimeLeft(),
                TextColumn("[dim]{task.fields[note]}"),
                console=self._console,
            )
            self._bars.start()
        else:
            self._stop.clear()
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if self._ticker is not None:
            self._stop.set()
            self._ticker.join()
            self._ticker = None

    @contextmanager
    def stage(
        self,
        name: str,
        total: int,
        unit: str = "steps",
        *,
        limit_s: float | None = None,
        done: int = 0,
    ) -> Iterator[Stage]:
        """`total` units of work are to be done in this block, or what fits into `limit_s`; `done`
        of them an earlier process did."""
        stage = Stage(name, total, unit, self._clock, limit_s, done)
        bar = self._add_bar(stage)
        self._stages.append(stage)
        try:
            yield stage
        finally:
            self._stages.remove(stage)
            if bar is None:
                self._print(stage)

    def _add_bar(self, stage: Stage) -> TaskID | None:
        bars = self._bars
        if bars is None:
            return None
        bar = bars.add_task(
            escape(stage.name), total=stage.total, unit=stage.unit, note="", stage=stage
        )

        def watch(changed: Stage) -> None:
            bars.update(bar, completed=changed.done, note=escape(changed.latest_note))

        stage.watch = watch
        return bar

    def _tick(self) -> None:
        while not self._stop.wait(self._interval_s):
            for stage in list(self._stages):
                self._print(stage)

    def _print(self, stage: Stage) -> None:
        self._console.print(stage.line(), markup=False)


def _clock_text(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
