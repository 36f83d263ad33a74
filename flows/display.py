"""What a person sees while a recipe runs: a quiet live display in a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from components.plan import Stage
from components.types import Artifact

SHOWN = ("loss", "accuracy", "validation", "margin", "tokens_per_second")


class Log(Console):
    """What is no terminal: an event, an address and a row of a table on one line each, for whoever searches it, with nothing behind it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(width=10_000, **options)  # columns: more than any line has

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as captured:
            super().print(*objects, **options)
        said = "\n".join(line.rstrip() for line in captured.get().split("\n"))
        super().print(said, end="", markup=False, emoji=False, highlight=False, soft_wrap=True)


def open_console(**options: Any) -> Console:
    """Standard output."""
    made = Console(**options)
    return made if made.is_terminal else Log(**options)


def table_of(*columns: str, right: Collection[str] = (), **each: Any) -> Table:
    """An empty table without lines. Columns in `right` hold numbers; `each` is an option of every column."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", **each)
    return table


class Display:
    """Watches a pipeline. Live when the console is a terminal, one line an event otherwise."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[tuple[str, str, float, str]] = []
        self.live: Progress | None = None
        self.task: Any = None
        self.spoke = 0.0

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live = Progress(SpinnerColumn(), TextColumn("{task.description:<14}"), BarColumn(bar_width=24),
                                 TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=self.console, transient=True)
            self.live.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.live:
            self.live.stop()

    def started(self, stage: Stage, metrics: Path) -> None:
        self.spoke = time.monotonic()
        if self.live:
            self.task = self.live.add_task(stage.title, total=None, note="")
        else:
            self.console.print(f"{stage.title}: started", highlight=False)

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        of = f" of {line['of']}" if line.get("of") else ""
        note = f"{line['step']}{of} {line['unit']}" if "unit" in line else _note(line["metrics"])
        if self.live and self.task is not None:
            self.live.update(self.task, completed=line["step"], total=line.get("of"), note=note)
        elif not self.live and time.monotonic() - self.spoke > 15:
            self.spoke = time.monotonic()
            step = "" if "unit" in line else f"step {line['step']}{of}  "
            self.console.print(f"{stage.title}: {step}{note}", highlight=False)

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        self._drop()
        self.rows.append((stage.title, "kept" if reused else "made", seconds, result(artifact.meta)))
        if not reused:
            self.console.print(f"{stage.title}: done in {seconds:.0f} s  {headline(artifact.meta)}", highlight=False, markup=False)
            if counted := records(artifact.meta):
                self.console.print(f"{stage.title}: records: {counted}", highlight=False, markup=False)

    def failed(self, stage: Stage, error: BaseException) -> None:
        self._drop()
        self.rows.append((stage.title, "stopped", 0.0, type(error).__name__))

    def _drop(self) -> None:
        if self.live and self.task is not None:
            self.live.remove_task(self.task)
        self.task = None

    def table(self) -> Table:
        table = table_of("stage", "", "seconds", "result", right=["seconds"])
        for name, state, seconds, found in self.rows:
            table.add_row(name, state, f"{seconds:.0f}" if seconds else "", escape(found))
        return table


def headline(meta: Mapping[str, Any]) -> str:
    """The few numbers of a stage that people look for."""
    found = []
    if "certificate" in meta:
        accuracy = meta["certificate"].get("accuracy")
        if isinstance(accuracy, Mapping):
            found.append(f"held-out accuracy {accuracy['mean']:.3f} [{accuracy['low']:.3f}, {accuracy['high']:.3f}]")
        crossed = meta["certificate"].get("cross_validated")
        if isinstance(crossed, Mapping):
            found.append(f"cross-validated {crossed['mean']:.3f} [{crossed['low']:.3f}, {crossed['high']:.3f}]")
    if "panel" in meta:
        panel = meta["panel"]
        found += [f"{k} {v:.3g}" for k, v in panel.items() if k.startswith("reward.") or k in ("length", "kl", "gold")]
    if meta.get("best_validation_loss") is not None:
        found.append(f"validation loss {meta['best_validation_loss']:.4f} at step {meta['best_step']}")
    if meta.get("steps"):
        found.append(f"{meta['steps']} steps{', stopped early' if meta.get('stopped_early') else ''}")
    if "headline" in meta:
        found.append(str(meta["headline"]))
    if meta.get("held"):
        found.append("held by a health rule")
    if meta.get("held_steps"):
        found.append(f"{meta['held_steps']} held by a health rule")
    found += [f"health: {why}" for why in meta.get("verdicts", ())]
    return " · ".join(found)


def records(meta: Mapping[str, Any], most: int = 8) -> str:
    """What a stage read, kept, cut, dropped or found tied, in one line: the `most` largest of its counts in their order, the others
    summed. All of them stand in the stage's manifest and in MLflow."""
    counts = {name: number for name, number in meta.get("counts", {}).items() if number}
    largest = sorted(counts, key=lambda name: -counts[name])[:most]
    found = [f"{number:,} {name}" for name, number in counts.items() if name in largest]
    rest = [number for name, number in counts.items() if name not in largest]
    return "; ".join([*found, f"{sum(rest):,} of {len(rest)} other kinds"] if rest else found)


def result(meta: Mapping[str, Any]) -> str:
    """A stage's cell in a table: its headline, and its records in a line below."""
    counted = records(meta)
    return "\n".join(line for line in (headline(meta), counted and f"records: {counted}") if line)


def _note(metrics: Mapping[str, float]) -> str:
    short = {k: v for k, v in metrics.items() if k.rsplit("/", 1)[-1] in SHOWN}
    return "  ".join(f"{k.split('/', 1)[-1] if '/' in k else k} {v:.4g}" for k, v in list(short.items())[:4])
