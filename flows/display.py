"""Progress display of a run: live in a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from ratchet.tasks.tracking.counts import record_counts
from ratchet.tasks.tracking.outcome import stage_cell, stage_headline

if TYPE_CHECKING:
    from ratchet.components.recipes.plan import Stage
    from ratchet.components.types import Artifact

SHOWN = ("loss", "accuracy", "validation", "margin", "tokens_per_second")


class Log(Console):
    """Console for output that is not a terminal: one unwrapped line per event, address or table row."""

    def __init__(self, **options: Any) -> None:
        super().__init__(width=10_000, **options)  # wider than any line

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as captured:
            super().print(*objects, **options)
        text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
        super().print(text, end="", markup=False, emoji=False, highlight=False, soft_wrap=True)


def open_console(**options: Any) -> Console:
    """A console on standard output, which does not colour numbers."""
    made = Console(highlight=False, **options)
    return made if made.is_terminal else Log(highlight=False, **options)


def table_of(
    columns: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Collection[str] = (), **each: Any
) -> Table:
    """A table without borders. `right`: right-aligned columns; `each`: options of all columns. The text of a
    cell is no markup; a cell may be a `Text`.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", **each)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(str(cell)) for cell in row))
    return table


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print (label, text) pairs, one unwrapped line each."""
    for word, text in facts:
        console.print(f"{word:<10} {text}", soft_wrap=True, markup=False)


class Display:
    """Pipeline watcher: live display if the console is a terminal, one line per event otherwise."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[tuple[str, str, str, str]] = []
        self.live: Progress | None = None
        self.task: Any = None
        self.last_print = 0.0
        self.began = 0.0  # wall-clock time at which this attempt of the stage started
        self.first: tuple[Any, ...] = ()  # unit, total, step and time of the attempt's first progress line

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=10),
                TextColumn("{task.fields[count]}"),
                TextColumn(
                    "{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
                ),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
                expand=True,
            )
            self.live.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.live:
            self.live.stop()

    def started(self, stage: Stage, metrics: Path) -> None:
        self.last_print, self.began, self.first = time.monotonic(), time.time(), ()
        if self.live:
            self.task = self.live.add_task(stage.title, total=None, count="", note="")
        else:
            self.console.print(f"{stage.title}: started")
        if steps := [
            int(path.name.rpartition("-")[2])
            for path in (metrics.parent.parent / "progress").glob("checkpoint-*")
        ]:
            self.console.print(f"{stage.title}: continues at step {max(steps)}")

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        step, of, pace, note = line["step"], line.get("of"), self._pace(line), _note(line["metrics"])
        if self.live and self.task is not None:
            count = " ".join([f"{step}/{of}" if of else f"{step}", line.get("unit", "steps"), *pace])
            self.live.update(self.task, completed=step, total=of, count=count, note=note)
        elif not self.live and time.monotonic() - self.last_print > 15:
            self.last_print = time.monotonic()
            count = f"{step} of {of}" if of else f"{step}"
            count = f"{count} {line['unit']}" if "unit" in line else f"step {count}"
            self.console.print(f"{stage.title}: {'  '.join(filter(None, [count, ', '.join(pace), note]))}")

    def _pace(self, line: Mapping[str, Any]) -> list[str]:
        """Rate since this attempt's first count, and the time left by it, once ten units or a fiftieth of
        them are done; empty while unknown. After the last unit the stage is "finishing".
        """
        now, step, of = line.get("time", time.time()), line["step"], line.get("of")
        if now < self.began:  # a step of an earlier attempt
            return []
        if self.first[:2] != (line.get("unit"), of):
            self.first = (line.get("unit"), of, step, now)
        done, seconds = step - self.first[2], now - self.first[3]
        if done <= 0 or seconds <= 0:
            return []
        rate = f"{done / seconds:.3g}/s" if done >= seconds else f"{seconds / done:.3g} s each"
        if step == of:
            return [rate, "finishing"]
        if not of or done < min(10, of / 50):
            return [rate]
        return [rate, f"{timedelta(seconds=round((of - step) * seconds / done))} left"]

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        self._drop()
        state, took = "kept" if reused else "made", f"{seconds:.0f}" if seconds else ""
        self.rows.append((stage.title, state, took, stage_cell(artifact.meta)))
        if not reused:
            self.console.print(
                f"{stage.title}: done in {seconds:.0f} s  {stage_headline(artifact.meta)}",
                markup=False,
            )
            if counted := record_counts(artifact.meta):
                self.console.print(f"{stage.title}: records: {counted}", markup=False)

    def failed(self, stage: Stage, error: BaseException) -> None:
        self._drop()
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        self.rows.append((stage.title, "stopped", "", why))

    def _drop(self) -> None:
        if self.live and self.task is not None:
            self.live.remove_task(self.task)
        self.task = None

    def table(self) -> Table:
        return table_of(("stage", "", "seconds", "result"), self.rows, right=["seconds"])


def _note(metrics: Mapping[str, float]) -> str:
    short = {k: v for k, v in metrics.items() if k.rsplit("/", 1)[-1] in SHOWN}
    return "  ".join(f"{k.split('/', 1)[-1] if '/' in k else k} {v:.4g}" for k, v in list(short.items())[:4])
