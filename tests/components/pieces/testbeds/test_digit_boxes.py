"""Testbed `digit_boxes`: the digit is where its box says, and no digit is in two splits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.models.images import opened
from ratchet.components.pieces.rewards.boxes import box_of
from ratchet.components.pieces.testbeds.digit_boxes import digit_boxes


def test_bright_pixels_are_in_the_box_and_faint_digits_half_as_bright() -> None:
    rows = list(digit_boxes(demonstrations=30, shots=2, test=40, jitter=0))
    assert Counter(row["split"] for row in rows) == {"few": 20, "test": 40, "pretrain": 30}
    for row in rows:
        grey = np.asarray(opened(row["images"][0]))[..., 0]
        box = box_of(row["answer"] if row["split"] == "test" else row["completion"][0]["content"])
        assert grey.shape == (16, 16) and box is not None
        left, top, right, bottom = box
        inside = np.zeros_like(grey, bool)
        inside[top:bottom, left:right] = True
        assert grey[~inside].max() < 64, "noise alone"
        limit = 255 if row["split"] == "pretrain" else 127
        assert limit // 2 < grey[inside].max() <= limit
    assert len({row["images"][0] for row in rows}) == len(rows)


def test_jitter_moves_the_labels_of_pretraining_alone() -> None:
    exact, moved = ({r["id"]: r for r in digit_boxes(demonstrations=300, test=20, jitter=j)} for j in (0, 2))
    other = [n for n in exact if exact[n].get("answer") != moved[n].get("answer")]
    assert not other, "few and test have exact boxes"
    texts = [
        (exact[n]["completion"][0]["content"], moved[n]["completion"][0]["content"])
        for n in exact
        if n.startswith("pretrain")
    ]
    assert sum(a != b for a, b in texts) > 200
    with pytest.raises(DataError, match="1797 pictures"):
        list(digit_boxes(demonstrations=1797))
