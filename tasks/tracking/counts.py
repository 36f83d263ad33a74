"""Record counts of a stage in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READABLE = {
    "cut": "cut to max_tokens",
    "dropped": "left out",
    "groups before": "groups before the selection",
    "groups short of responses": "groups of which an answer was left out",
    "over the limit": "more than `limit`",
}
"""Names of counts in words that need no source code."""
ONE = {
    "answers": "answer",
    "groups": "group",
    "labels": "label",
    "pairs": "pair",
    "prompts": "prompt",
    "records": "record",
    "responses": "response",
    "ties": "tie",
    "trajectories": "trajectory",
    "turns": "turn",
}


def record_counts(meta: Mapping[str, Any]) -> str:
    """Record counts of a stage in one line: the eight largest counts, the others summed. All are in the
    manifest and in MLflow.
    """
    counts = {name: number for name, number in meta.get("counts", {}).items() if number}
    largest = sorted(counts, key=lambda name: -counts[name])[:8]
    found = [counted(name, number) for name, number in counts.items() if name in largest]
    if rest := [number for name, number in counts.items() if name not in largest]:
        found.append(f"{sum(rest):,} of {len(rest)} other kinds")
    return "; ".join(found)


def counted(name: str, number: float) -> str:
    """A count in words. Names with a colon are those of curation, `step: what was done or why left out`."""
    step, colon, what = name.partition(": ")
    if colon:
        return f"{number:,} × {READABLE.get(what, what)} ({step})"
    text = READABLE.get(name, name)
    first, space, rest = text.partition(" ")
    return f"{number:,} {ONE.get(first, first) if number == 1 else first}{space}{rest}"
