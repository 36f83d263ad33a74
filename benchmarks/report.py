"""Results as tables (Markdown, CSV) and plots (PNG)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import Row, plain

COLOURS = {"reached": "#2a9d5c", "not reached": "#d1495b", "": "#8a8f98", "invalid": "#d9d9d9"}


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; an invalid comparison shows the reason instead of ratios."""
    lines = [
        "| work | against | tokens/s, ours / theirs | times as fast [least, most] | wanted | peak MiB, "
        "ours / theirs | of its memory | wanted | largest differences | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        speed = f"{r.speed:.2f} [{r.speed_low:.2f}, {r.speed_high:.2f}]" if r.valid else "invalid"
        memory = f"{r.memory:.2f}" if r.valid else "invalid"
        lines.append(
            f"| {r.about} | {r.against}, {r.setting} | {r.ours:.0f} / {r.theirs:.0f} | {speed} | "
            f"{_goal('≥', r.speed_goal)} "
            f"| {r.ours_mib:.0f} / {r.theirs_mib:.0f} | {memory} | {_goal('≤', r.memory_goal)} | "
            f"{r.worst} | {r.verdict} |"
        )
    return "\n".join(lines) + "\n"


def _goal(sign: str, goal: float | None) -> str:
    return "" if goal is None else f"{sign} {goal:g}"


def write(folder: Path, name: str, rows: Sequence[Row], kept: Sequence[Mapping[str, Any]], head: str) -> None:
    """Write `<name>.md`, `.csv`, `.png`, and every single measurement to `<name>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps({"rows": [plain(r) for r in rows], "measured": list(kept)}, indent=1)
    )
    (folder / f"{name}.md").write_text(head + "\n" + table(rows))
    if rows:
        save_csv(folder / f"{name}.csv", [plain(r) for r in rows])
        bars(folder / f"{name}.png", rows)


def save_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def bars(path: Path, rows: Sequence[Row]) -> None:
    """Bar plot of speed and memory ratios with targets as black marks; invalid ones are omitted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [r for r in rows if r.valid][::-1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.55 * len(shown) + 1.6), sharey=True)
    names = [f"{r.work}\n{r.against}, {r.setting}" for r in shown]
    for axis, values, goals, title in (
        (left, [r.speed for r in shown], [r.speed_goal for r in shown], "times as fast"),
        (right, [r.memory for r in shown], [r.memory_goal for r in shown], "share of its peak memory"),
    ):
        axis.barh(range(len(shown)), values, color=[COLOURS[r.verdict] for r in shown], height=0.62)
        for at, (value, goal) in enumerate(zip(values, goals, strict=True)):
            axis.text(value, at, f" {value:.2f}", va="center", fontsize=8)
            if goal is not None:
                axis.plot([goal, goal], [at - 0.4, at + 0.4], color="black", linewidth=2)
        axis.axvline(1.0, color="#8a8f98", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    if shown:
        left.errorbar(
            [r.speed for r in shown],
            range(len(shown)),
            fmt="none",
            ecolor="#333333",
            capsize=2,
            xerr=[[r.speed - r.speed_low for r in shown], [r.speed_high - r.speed for r in shown]],
        )
    left.set_yticks(range(len(shown)), names, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def curves(path: Path, points: Sequence[Mapping[str, Any]]) -> None:
    """Throughput (tokens/s) against the varied quantity: one panel per dimension, one line per task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes = list(dict.fromkeys(p["axis"] for p in points))
    figure, panels = plt.subplots(1, len(axes), figsize=(3.6 * len(axes), 3.2), squeeze=False)
    for panel, axis in zip(panels[0], axes, strict=True):
        for work in dict.fromkeys(p["work"] for p in points if p["axis"] == axis):
            line = [p for p in points if p["axis"] == axis and p["work"] == work]
            panel.plot(
                [p["value"] for p in line],
                [p["tokens_per_second"] for p in line],
                marker="o",
                markersize=3,
                label=work,
            )
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="tokens/s" if axis == axes[0] else "")
        values = sorted({p["value"] for p in points if p["axis"] == axis})
        panel.set_xticks(values, [f"{value:g}" for value in values], fontsize=8)
        panel.yaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=StrMethodFormatter("{x:,.0f}")
        )
        for side in (panel.xaxis, panel.yaxis):
            side.set_minor_locator(NullLocator())
        panel.tick_params(axis="y", labelsize=8)
        panel.legend(fontsize=7, frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
