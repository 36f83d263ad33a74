"""Overlap of boxes, by hand, and the rewards made of it."""

from __future__ import annotations

import pytest

from ratchet.components.pieces.rewards.boxes import box_of, grounding, iou, overlap
from ratchet.components.types import Context, Group, Prompt, Trajectory


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((3, 7, 11, 15), (3, 7, 11, 15), (1.0, 1.0)),
        ((0, 0, 8, 8), (4, 0, 12, 8), (32 / 96, 32 / 96)),  # side by side: the box around both is their union
        ((0, 0, 8, 8), (4, 4, 12, 12), (16 / 112, 16 / 112 - 32 / 144)),
        ((0, 0, 2, 2), (6, 6, 8, 8), (0.0, -56 / 64)),
        ((0, 0, 10, 10), (2, 2, 4, 4), (4 / 100, 4 / 100)),  # one inside the other
    ],
)
def test_overlap_is_that_worked_by_hand(a, b, expected) -> None:
    assert overlap(a, b) == pytest.approx(expected) and overlap(b, a) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (" 3 7 11 15\n", (3, 7, 11, 15)),
        ("3, 7, 11, 15", (3, 7, 11, 15)),
        ("3 7 11", None),
        ("It is at 3 7 11 15", None),
        ("11 7 3 15", None),
        ("3 7 3 15", None),
        ("", None),
    ],
)
def test_only_a_box_is_a_box(text: str, box) -> None:
    assert box_of(text) == box


def test_rewards_and_failures() -> None:
    texts = ("0 0 8 8", "4 4 12 12", "9 9 10 10", "nothing")
    paths = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    groups = [Group(Prompt("p", (), "0 0 8 8"), paths), Group(Prompt("q", (), "there"), paths[:1])]
    found = iou(groups, Context())
    assert found["reward.iou"][0] == pytest.approx([1.0, 16 / 112, 0.0, 0.0])
    assert found["reward.iou"][1] == [None] and "no box" in found["reward.iou.status"][1][0]
    apart = 1 - (100 - 65) / 100
    assert grounding(groups[:1], Context())["reward.grounding"][0] == pytest.approx(
        [2.0, 1 + 16 / 112 - 32 / 144, apart, 0.0]
    )
