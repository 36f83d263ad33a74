"""Testbed `melodies`: captions, imperfect melodies, and users' choices with the stated share at random."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.rewards.melody import KEYS, PITCHES, adherence_of, liking_of, notes
from ratchet.components.pieces.testbeds.melodies import choice, melodies, melody


def said(row: dict, column: str) -> str:
    return row[column][0]["content"]


def test_captions_differ_and_name_the_shape_and_key_of_their_meta() -> None:
    rows = list(melodies(seed=2))
    assert Counter(row["split"] for row in rows) == {
        "sft": 400,
        "pairs": 600,
        "held_out": 100,
        "unlabelled": 400,
        "test": 96,
    }
    assert len({said(row, "prompt") for row in rows}) == len(rows)
    for row in rows:
        words = said(row, "prompt").split()
        assert (words[2], words[-1]) == (row["meta"]["shape"], row["meta"]["key"])
    with pytest.raises(DataError, match="of 1920"):
        next(melodies(size=725))


def test_a_melody_without_slips_goes_along_the_scale_and_turns_at_its_end() -> None:
    rng = random.Random(0)
    for shape, key in (("rising", "C"), ("falling", "G"), ("rising", "F")):
        scale = [i for i, pitch in enumerate(PITCHES) if pitch.upper() in KEYS[key]]
        for _ in range(50):
            pitches = [pitch for pitch, _ in notes(melody(shape, key, 0.0, rng))]
            places = [scale.index(pitch) for pitch in pitches]  # fails for a note outside the key
            assert 6 <= len(pitches) <= 10 and {abs(b - a) for a, b in pairwise(places)} == {1}
            turns = [b for (a, b), (_, c) in zip(pairwise(places), pairwise(places[1:]), strict=False)
                     if (b - a) * (c - b) < 0]  # fmt: skip
            assert set(turns) <= {0, len(scale) - 1}
    random_notes = "".join(melody("rising", "C", 1.0, rng) for _ in range(300))
    assert adherence_of(random_notes, "rising", "C") == pytest.approx((5 / 7 + 13 / 28) / 2, abs=0.03)
    lengths = [length for _, length in notes(random_notes)]
    assert lengths.count(2) / len(lengths) == pytest.approx(0.5, abs=0.03)


class Drawn:
    """A generator that gives these numbers: the one that decides whether a choice is careless, and a coin."""

    def __init__(self, uniform: float, coin: int) -> None:
        self.uniform, self.coin = uniform, coin

    def random(self) -> float:
        return self.uniform

    def randrange(self, stop: int) -> int:
        assert stop == 2
        return self.coin


def test_a_user_chooses_what_is_liked_more_and_a_careless_one_by_a_coin() -> None:
    for coin in (0, 1):
        assert choice(0.6, 0.5, 0.2, Drawn(0.2, coin)) == (0, False)
        assert choice(0.5, 0.6, 0.2, Drawn(0.2, coin)) == (1, False)
        assert choice(0.6, 0.5, 0.2, Drawn(0.19, coin)) == (coin, True)
        assert choice(0.5, 0.5, 0.2, Drawn(0.9, coin)) == (coin, False)


@pytest.mark.parametrize("careless", [0.0, 0.2, 0.6])
def test_the_stated_share_of_choices_is_random_and_half_of_these_wrong(careless: float) -> None:
    rows = [
        row
        for seed in range(3)
        for row in melodies(seed=seed, size=0, demonstrations=0, pairs=1400, careless=careless)
        if row["split"] in ("pairs", "held_out")
    ]
    wrong = Counter[bool]()
    for row in rows:
        liked, other = (liking_of(said(row, name), **row_caption(row)) for name in ("chosen", "rejected"))
        wrong[row["meta"]["careless"]] += liked < other
    careful = sum(not row["meta"]["careless"] for row in rows)
    assert len(rows) == 4500 and wrong[False] == 0
    assert 1 - careful / len(rows) == pytest.approx(careless, abs=0.025)
    assert wrong[True] / len(rows) == pytest.approx(careless / 2, abs=0.025)


def row_caption(row: dict) -> dict:
    return {"shape": row["meta"]["shape"], "key": row["meta"]["key"]}
