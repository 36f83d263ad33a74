"""Figures of a run. Each function writes one figure to `path` (`.png` or `.svg`) and opens no window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.evaluation.plot_style import draw_interval, new_figure, per_cent, save_figure, styled

BLUE, ORANGE, GREEN, GREY, RED = "#2563a8", "#d9772b", "#3a8f5c", "#8a8f98", "#b83a3a"
COLOURS = (BLUE, ORANGE, GREEN, GREY, RED)
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v")  # arms differ in marker too, not only in colour


@styled
def calibration(bins: Sequence[Mapping[str, float]], path: Path, *, error: float | None = None) -> Path:
    """Reliability diagram: accuracy against predicted probability; marker area = number of pairs."""
    figure, axes = new_figure(4.6, 4.2)
    axes.plot([0.5, 1], [0.5, 1], color=GREY, linestyle="--", linewidth=1, label="perfectly calibrated")
    total = sum(b["pairs"] for b in bins) or 1
    x, y = [b["confidence"] for b in bins], [b["accuracy"] for b in bins]
    axes.plot(x, y, "-", color=BLUE, linewidth=1.2, label="this model; area = pairs")
    axes.scatter(x, y, s=[15 + 400 * b["pairs"] / total for b in bins], color=BLUE, alpha=0.75)
    axes.set(
        xlabel="claimed probability",
        ylabel="share right",
        xlim=(0.48, 1.02),
        ylim=(min(0.38, *y, 0.5) - 0.02, 1.04),
        title="Calibration" + (f" (expected error {error:.3f})" if error is not None else ""),
    )
    axes.legend(loc="upper left")
    return save_figure(figure, path)


def certificate(found: Mapping[str, Any], folder: Path, *, suffix: str = "") -> dict[str, Path]:
    """Figures of a certificate: `calibration<suffix>`, `length_bias<suffix>` and, if measured,
    `best_of_n<suffix>` -> file.
    """
    drawn = [
        calibration(
            found["reliability"], folder / f"calibration{suffix}.png", error=found["calibration_error"]
        ),
        length_bias(found["length"], found["accuracy"], folder / f"length_bias{suffix}.png"),
    ]
    if found.get("best_of_n"):
        drawn.append(best_of_n(found["best_of_n"], folder / f"best_of_n{suffix}.png"))
    return {path.stem: path for path in drawn}


@styled
def win_rates(rows: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Label → {mean, low, high}: one horizontal interval per row around the 50 % line, in the given order."""
    figure, axes = new_figure(6.2, 1.2 + 0.45 * len(rows))
    for place, row in enumerate(reversed(list(rows.values()))):
        colour = GREEN if row["low"] > 0.5 else RED if row["high"] < 0.5 else GREY
        axes.plot(
            [row["low"], row["high"]], [place, place], color=colour, linewidth=3, solid_capstyle="round"
        )
        axes.plot(row["mean"], place, "o", color=colour, markersize=7)
        axes.annotate(
            f"{row['mean']:.1%}",
            (row["mean"], place),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.axvline(0.5, color="#444", linewidth=1)
    axes.set_yticks(range(len(rows)), list(reversed(list(rows))))
    low, high = min(r["low"] for r in rows.values()), max(r["high"] for r in rows.values())
    axes.set(
        xlim=(max(0, min(0.4, low - 0.05)), min(1.02, max(0.6, high + 0.05))),
        ylim=(-0.6, len(rows) - 0.25),
        xlabel="win rate, 95% interval over prompts",
        title="Win rates",
    )
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y", visible=False)
    return save_figure(figure, path)


@styled
def rounds(rows: Sequence[Mapping[str, float]], path: Path) -> Path:
    """One small plot each for reward, gold score, KL, length and diversity by round, two beside each other,
    which a phone can show; metrics without values are omitted.
    """
    wanted = [
        ("reward", "Reward", BLUE),
        ("gold", "Gold score", GREEN),
        ("kl", "KL to SFT (nats)", RED),
        ("length", "Length (tokens)", ORANGE),
        ("distinct_2", "Distinct word pairs", GREY),
    ]
    shown = [w for w in wanted if any(w[0] in row for row in rows)]
    columns, lines = min(len(shown), 2) or 1, max(1, -(-len(shown) // 2))
    figure, panels = new_figure(3.1 * columns, 2.3 * lines, lines, columns)
    for axes in panels.flat[len(shown) :]:
        axes.remove()
    for axes, (key, title, colour) in zip(panels.flat, shown, strict=False):
        points = [(row.get("round", i + 1), row[key]) for i, row in enumerate(rows) if key in row]
        axes.plot(*zip(*points, strict=True), "o-", color=colour)
        axes.set(title=title, xlabel="round")
        axes.set_xticks([row.get("round", i + 1) for i, row in enumerate(rows)])
        axes.margins(x=0.15, y=0.2)
    return save_figure(figure, path)


@styled
def best_of_n(found: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """n -> interval of the true rate of the answer that the reward model scores highest among n; logarithmic
    x axis.
    """
    figure, axes = new_figure(5.4, 3.6)
    rows = sorted((int(n), row) for n, row in found.items() if n.isdigit())
    axes.plot([n for n, _ in rows], [row["mean"] for _, row in rows], "-", color=BLUE, linewidth=1.2)
    for n, row in rows:
        draw_interval(axes, row, n, colour=BLUE, marker="o")
    axes.set(xlabel="n answers, of which the reward model picks one", ylabel="true rate", title="Best of n")
    axes.set_xscale("log", base=2)
    axes.set_xticks([n for n, _ in rows], [str(n) for n, _ in rows])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(per_cent())
    axes.margins(x=0.08, y=0.15)
    return save_figure(figure, path)


@styled
def slices(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path, *, title: str, rate: bool = True
) -> Path:
    """Row label -> arm -> interval of a rate, or of any number without `rate`, as dots with intervals."""
    arms = list(dict.fromkeys(arm for row in rows.values() for arm in row))
    figure, axes = new_figure(6.2, 1.2 + (0.1 + 0.13 * len(arms)) * len(rows))
    for place, row in enumerate(reversed(list(rows.values()))):
        for number, arm in enumerate(arms):
            if arm in row:
                at = place + 0.7 / len(arms) * ((len(arms) - 1) / 2 - number)
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
                axes.plot(
                    [row[arm]["low"], row[arm]["high"]],
                    [at, at],
                    color=colour,
                    linewidth=2,
                    solid_capstyle="round",
                )
                axes.plot(row[arm]["mean"], at, marker, color=colour, markersize=6, label=arm)
    axes.set_yticks(range(len(rows)), list(reversed(list(rows))))
    for place in range(1, len(rows)):
        axes.axhline(place - 0.5, color="#e6e8eb", linewidth=0.8)
    axes.set(ylim=(-0.5, len(rows) - 0.5), title=title)
    axes.set_xlabel(f"{'rate' if rate else 'mean'}, 95% interval over prompts")
    if rate:
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y", visible=False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend([handles[arm] for arm in arms], arms, loc="outside lower center", ncols=max(len(arms), 1))
    return save_figure(figure, path)


@styled
def proxy_gold(rows: Sequence[Mapping[str, float]], path: Path, *, rate: bool = True) -> Path:
    """Mean reward-model score (left axis, dashed) and true rate (any number without `rate`) with its interval
    (right axis, solid) by round.
    """
    figure, left = new_figure(6.2, 3.6)
    right = left.twinx()
    rounds = [row["round"] for row in rows]
    (proxy,) = left.plot(
        rounds,
        [row["proxy"] for row in rows],
        "s--",
        color=ORANGE,
        label="reward model's mean score (left axis)",
    )
    (gold,) = right.plot(
        rounds, [row["gold"] for row in rows], "o-", color=GREEN, label="true rate, 95% interval (right axis)"
    )
    for row in rows:
        if "gold_low" in row:
            draw_interval(
                right,
                {"mean": row["gold"], "low": row["gold_low"], "high": row["gold_high"]},
                row["round"],
                colour=GREEN,
                marker="o",
            )
    left.set(xlabel="round", title="Reward model against the truth")
    left.set_ylabel("reward model's mean score", color=ORANGE)
    right.set_ylabel("true rate", color=GREEN)
    if rate:
        right.yaxis.set_major_formatter(per_cent())
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    left.set_xticks(rounds)
    left.margins(x=0.08, y=0.15)
    right.margins(y=0.15)
    figure.legend(handles=[proxy, gold], loc="outside lower center", ncols=2)
    return save_figure(figure, path)


@styled
def lengths(arms: Mapping[str, Sequence[float]], path: Path) -> Path:
    """Arm → answer lengths in tokens: one outlined histogram each on common bins."""
    import numpy as np

    figure, axes = new_figure(5.6, 3.4)
    longest = max(max(values, default=1) for values in arms.values())
    edges = np.arange(0, longest + 2, max(1, round(longest / 24))) - 0.5  # whole tokens per bin
    edges = np.append(edges, edges[-1] + (edges[1] - edges[0]))
    for number, (name, values) in enumerate(arms.items()):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        axes.hist(
            values,
            bins=edges,
            histtype="step",
            linewidth=1.8,
            linestyle=style,
            color=colour,
            weights=np.full(len(values), 1 / len(values)),
            label=f"{name} (mean {np.mean(values):.1f})",
        )
    axes.set(xlabel="tokens an answer", ylabel="share of answers", title="Length of the answers")
    axes.legend()
    return save_figure(figure, path)


@styled
def length_bias(length: Mapping[str, Any], accuracy: Mapping[str, float], path: Path) -> Path:
    """`length` section of a certificate: accuracy raw, length-controlled, at equal length, and of preferring
    the longer answer.
    """
    rows = {
        "as it scores": accuracy,
        "length taken out": length["controlled"],
        "equal lengths only": length["matched"],
        "the longer one": length["longer_preferred"],
    }
    rows = {name: row for name, row in rows.items() if row}
    figure, axes = new_figure(5.4, 4.2)
    for place, row in enumerate(rows.values()):
        axes.bar(place, row["mean"], width=0.6, color=GREY if place == len(rows) - 1 else BLUE, alpha=0.85)
        axes.errorbar(
            place,
            row["mean"],
            [[row["mean"] - row["low"]], [row["high"] - row["mean"]]],
            color="#333",
            capsize=4,
        )
    axes.axhline(0.5, color="#444", linewidth=1)
    axes.set_xticks(range(len(rows)), list(rows), fontsize=9)
    axes.set(ylabel="held-out accuracy", ylim=(0.3, 1), title="How much of the preference is length")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="x", visible=False)
    return save_figure(figure, path)


@styled
def training(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, ylabel: str = "loss"
) -> Path:
    """Name → points (step, value): training curves on common axes."""
    figure, axes = new_figure(6.2, 3.4)
    for (name, points), colour in zip(
        curves.items(), COLOURS * (1 + len(curves) // len(COLOURS)), strict=False
    ):
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=1.6,
                label=name,
                marker="o" if len(points) < 4 else None,
            )
    axes.set(xlabel="step", ylabel=ylabel, title="Training")
    axes.legend()
    return save_figure(figure, path)
