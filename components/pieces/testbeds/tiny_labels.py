"""Testbed `tiny_labels`: single labelled answers of the tiny language."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.tiny_pairs import tiny_pairs
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def tiny_labels(*, size: Count = 500, seed: Natural = 0) -> Iterator[dict[str, Any]]:
    """Labelled answers {id, prompt, completion, label}: one answer of each of `tiny_pairs`, alternately the
    chosen and the rejected one.

    Shows: learning from single labels. Does not show: unbalanced or noisy labels; see `tiny_pairs`.
    """
    for number, pair in enumerate(tiny_pairs(size=size, seed=seed)):
        good = number % 2 == 0
        yield {
            "id": f"tiny-label-{seed}-{number}",
            "prompt": pair["prompt"],
            "completion": pair["chosen" if good else "rejected"],
            "label": good,
        }
