"""Rewards of a box in an image: how far it overlaps with the right one."""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

BOX = re.compile(r"\s*(\d+)[ ,]+(\d+)[ ,]+(\d+)[ ,]+(\d+)\s*")
Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels; right and bottom are exclusive."""


def box_of(text: str) -> Box | None:
    """The box that a text consists of, four numbers; None for any other text, or a box without a pixel.

    >>> box_of("3 7 11 15")
    (3, 7, 11, 15)
    """
    found = BOX.fullmatch(text)
    if found is None:
        return None
    left, top, right, bottom = map(int, found.groups())
    return (left, top, right, bottom) if left < right and top < bottom else None


def overlap(a: Box, b: Box) -> tuple[float, float]:
    """Intersection over union, and generalised IoU (arXiv:1902.09630): IoU less the share of the smallest box
    around both that neither covers.

    >>> overlap((0, 0, 2, 2), (1, 0, 3, 2))
    (0.3333333333333333, 0.3333333333333333)
    >>> overlap((0, 0, 1, 1), (3, 0, 4, 1))
    (0.0, -0.5)
    """
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    union = _area(a) + _area(b) - both
    around = _area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    return both / union, both / union - (around - union) / around


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


@piece(writes=("reward.iou", "reward.iou.status"), paper="arXiv:2503.01785", gold=True)
@each
def iou(prompt: Prompt, trajectory: Trajectory) -> float:
    """Intersection over union of the answer's box and `prompt.answer`, "left top right bottom"; 0 for an
    answer that is no box.
    """
    box = box_of(trajectory.text)
    return overlap(box, _right(prompt))[0] if box else 0.0


@piece(writes=("reward.grounding", "reward.grounding.status"), paper="arXiv:2503.01785")
@each
def grounding(prompt: Prompt, trajectory: Trajectory) -> float:
    """The grounding reward of Visual-RFT, 0 to 2: generalised IoU plus 1, so that of boxes that do not
    touch the nearer is better; 0 for an answer that is no box.
    """
    box = box_of(trajectory.text)
    return overlap(box, _right(prompt))[1] + 1 if box else 0.0


def _right(prompt: Prompt) -> Box:
    box = box_of(prompt.answer or "")
    if box is None:
        raise ValueError(f"prompt {prompt.id!r} has no box as its answer, got {prompt.answer!r}")
    return box
