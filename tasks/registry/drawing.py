"""Lineage diagram as SVG: ancestors on top, the artifact at the bottom, one lane per kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ratchet.components.storage.store import write_atomic
from ratchet.tasks.tracking.results import numbers

LANES = ("data", "groups", "weights", "report")
COLOURS = {"data": "#3a8f5c", "groups": "#d9772b", "weights": "#2563a8", "report": "#8a8f98"}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 230, 58, 40, 34, 30, 110  # pixels


def draw(lineage: Mapping[str, Any], path: Path, title: str, notes: Mapping[str, str] | None = None) -> Path:
    """Write the diagram to `path`. `notes`: text per stage. Deterministic bytes."""
    stages: Mapping[str, Any] = lineage["stages"]
    places = layout(stages)
    width = max(x for x, _ in places.values()) + WIDTH + MARGIN + GAP_X + WIDTH // 4
    height = max(y for _, y in places.values()) + HEIGHT + MARGIN
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
             'font-family="Helvetica, Arial, sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>',
             _text(MARGIN, 30, title, 16, "bold"),
             _text(MARGIN, 50, f"recipe {lineage['recipe']}, run {lineage['run']}, code {lineage['revision'][:12]}", 11),
             _text(MARGIN, 68, ", ".join(f"{k} {v:.4g}" for k, v in list(numbers(lineage).items())[:4]), 11)]
    lines += [_key(MARGIN + 80 * i, kind) for i, kind in enumerate(k for k in LANES if any(s.get("kind") == k for s in stages.values()))]
    for name, stage in stages.items():
        for parent in dict.fromkeys(stage["inputs"].values()):
            lines.append(_edge(places[parent], places[name]))
    for name, stage in stages.items():
        lines.append(_box(*places[name], name, stage, (notes or {}).get(name, ""), last=name == lineage["product"]))
    write_atomic(Path(path), "\n".join([*lines, "</svg>"]) + "\n")
    return Path(path)


def layout(stages: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Name → top left corner. Each stage is a row below its lowest input; each kind has a lane as wide as its fullest
    row.
    """
    rows: dict[str, int] = {}
    for name, stage in stages.items():  # ancestors come first
        rows[name] = 1 + max((rows[p] for p in stage["inputs"].values()), default=-1)
    lane = {name: LANES.index(stage.get("kind", "data")) for name, stage in stages.items()}
    crowd = Counter((lane[n], rows[n]) for n in stages)
    slots = [max((count for (at, _), count in crowd.items() if at == i), default=0) for i in range(len(LANES))]
    placed: Counter[tuple[int, int]] = Counter()
    found = {}
    for name in stages:
        at = lane[name], rows[name]
        found[name] = (MARGIN + (sum(slots[: at[0]]) + placed[at]) * (WIDTH + GAP_X), HEAD + at[1] * (HEIGHT + GAP_Y))
        placed[at] += 1
    return found


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Curve from the bottom of one box to the top of another; long ones within a column bend around the boxes."""
    (x1, y1), (x2, y2) = (start[0] + WIDTH // 2, start[1] + HEIGHT), (end[0] + WIDTH // 2, end[1])
    swing = WIDTH if x1 == x2 and y2 - y1 > GAP_Y else 0
    middle = (y1 + y2) // 2
    first, second = (y1 + GAP_Y, y2 - GAP_Y) if swing else (middle, middle)
    return (f'<path d="M{x1},{y1} C{x1 + swing},{first} {x2 + swing},{second} {x2},{y2}" fill="none" stroke="#9aa0a8" '
            'stroke-width="1.2" stroke-opacity="0.7"/>')


def _box(x: int, y: int, name: str, stage: Mapping[str, Any], note: str, *, last: bool) -> str:
    gone = stage.get("missing")
    colour = "#b83a3a" if gone else COLOURS[stage["kind"]]
    below = f"no longer in the store {stage['key'][:12]}" if gone else f"{stage['content'][:12]}  {stage['made'][:16].replace('T', ' ')}"
    return (f'<g><title>{escape(_details(name, stage))}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
            f'fill="white" stroke="{colour}" stroke-width="{3 if last else 1.5}"/><rect x="{x}" y="{y}" width="6" height="{HEIGHT}" '
            f'rx="2" fill="{colour}"/>{_text(x + 16, y + 19, name, 13, "bold")}{_text(x + 16, y + 35, below, 10.5)}'
            f'{_text(x + 16, y + 50, note if len(note) < 38 else note[:36] + "…", 10.5)}</g>')


def _details(name: str, stage: Mapping[str, Any]) -> str:
    """Tooltip of a box."""
    numbers = [f"{k}: {v}" for k, v in stage.get("meta", {}).items() if isinstance(v, (int, float, str))]
    known = [f"{word} {stage[at]}" for word, at in (("key", "key"), ("content", "content"), ("code", "revision")) if stage.get(at)]
    return "\n".join([name, *known, *numbers[:20]])


def _key(x: int, kind: str) -> str:
    return f'<rect x="{x}" y="82" width="10" height="10" rx="2" fill="{COLOURS[kind]}"/>{_text(x + 15, 91, kind, 11)}'


def _text(x: int, y: int, text: str, size: float, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="#22262b">{escape(text)}</text>'
