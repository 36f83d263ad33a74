"""Noised digits: portions without overlap, the forward process by hand, chains backwards, fresh noise."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.testbeds.digit_images import CODES
from ratchet.components.pieces.testbeds.noised_digits import (
    PORTIONS,
    chain,
    is_image,
    kept_shares,
    noised,
    noised_digits,
    portion,
)

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(noised_digits(size=1800, prompts=40, test=20, seed=3))


def of(rows: list[Row], split: str) -> list[Row]:
    return [row for row in rows if row["split"] == split]


def test_no_image_of_a_classifier_is_the_policys(rows: list[Row]) -> None:
    images = {name: {one.codes for one in portion(name)} for name in PORTIONS}
    assert [len(one) for one in images.values()] == [*PORTIONS.values()]
    assert len(set.union(*images.values())) == sum(PORTIONS.values())
    assert {row["completion"][-1]["content"] for row in of(rows, "chains")} == images["policy"]
    with pytest.raises(DataError, match="third"):
        portion("third")


def test_a_symbol_is_kept_to_step_t_with_probability_1_minus_t_over_steps() -> None:
    """By hand for four steps: 3/4, 3/4 x 2/3 = 1/2, 1/2 x 1/2 = 1/4, nothing."""
    assert kept_shares(4) == pytest.approx([3 / 4, 2 / 3, 1 / 2, 0])
    rng = random.Random(0)
    drawn = [chain("A" * 16, 4, rng) for _ in range(2000)]
    for t in range(5):
        same = sum(one[t].count("A") for one in drawn) / (16 * len(drawn))
        assert same == pytest.approx(1 - t / 4 + t / 4 / 16, abs=0.01)


def test_a_drawn_symbol_is_any_of_the_values() -> None:
    assert noised("ABCD", 1.0, random.Random(0)) == "ABCD"
    letters = noised("A" * 4000, 0.0, random.Random(0))
    assert set(letters) == set(CODES) and letters.count("A") == pytest.approx(250, abs=60)


def test_chains_run_from_noise_to_the_image_and_say_digit_and_time(rows: list[Row]) -> None:
    digits = {one.codes: one.digit for one in portion("policy")}
    chains = of(rows, "chains")
    assert len(chains) == 1800
    kept = [0] * 3
    for row in chains:
        found = re.fullmatch(r"(\d) t3 ([A-P]{16})", row["prompt"][0]["content"])
        assert found
        turns = [turn["content"] for turn in row["completion"]]
        assert [turn["role"] for turn in row["completion"]] == ["assistant", "user"] * 2 + ["assistant"]
        assert turns[1::2] == [f"{found[1]} t2", f"{found[1]} t1"]
        states = [found[2], *turns[::2]]
        assert all(map(is_image, states)) and digits[states[-1]] == int(found[1])
        for i in range(3):
            kept[i] += sum(a == b for a, b in zip(states[i], states[-1], strict=True))
    noise, high, low = (count / (16 * len(chains)) for count in kept)
    assert noise == pytest.approx(1 / 16, abs=0.005)
    assert (high, low) == (pytest.approx(1 / 3 + 2 / 48, abs=0.01), pytest.approx(2 / 3 + 1 / 48, abs=0.01))


def test_prompts_have_every_digit_in_turn_and_noise_of_their_own(rows: list[Row]) -> None:
    for split, count in (("prompts", 40), ("test", 20)):
        asked = of(rows, split)
        assert [row["answer"] for row in asked] == [str(i % 10) for i in range(count)]
        texts = [row["prompt"][0]["content"] for row in asked]
        assert len(set(texts)) == count and "completion" not in asked[0]
        assert all(
            re.fullmatch(rf"{row['answer']} t3 [A-P]{{16}}", t) for row, t in zip(asked, texts, strict=True)
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A" * 16, True), ("A" * 15, False), ("A" * 17, False), ("A" * 15 + "Q", False), ("a" * 16, False)],
)
def test_an_image_is_sixteen_letters_from_a_to_p(text: str, expected: bool) -> None:
    assert is_image(text) == expected
