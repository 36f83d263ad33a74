"""Style of the figures, and what they are drawn with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "ratchet",
    "text.parse_math": False,
    "axes.edgecolor": "#9aa0a8",
}


def styled(draw: Callable[..., Path]) -> Callable[..., Path]:
    """Apply `STYLE` during drawing: matplotlib reads fonts and colours when artists are created."""

    @functools.wraps(draw)
    def styled(*args: Any, **options: Any) -> Path:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **options)

    return styled


def per_cent() -> Any:
    """Percent tick formatter with as many decimals as the tick distance needs."""
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0)


def draw_interval(axes: Any, row: Mapping[str, float], at: float, *, colour: str, marker: str) -> None:
    """A vertical interval around its mean."""
    axes.plot([at, at], [row["low"], row["high"]], color=colour, linewidth=2, solid_capstyle="round")
    axes.plot(at, row["mean"], marker, color=colour, markersize=6)


def new_figure(width: float, height: float, lines: int = 0, columns: int = 0) -> tuple[Any, Any]:
    """A figure without pyplot state and its axes; with `lines` and `columns`, an array of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(lines, columns, squeeze=False) if columns else figure.subplots()


def save_figure(figure: Any, path: Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    figure.savefig(path, metadata=plain)  # no date or version, for reproducible bytes
    return path
