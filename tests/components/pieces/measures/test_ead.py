"""Expectation-adjusted distinct n-grams of the answers to a prompt."""

import pytest

from ratchet.components.pieces.measures.ead import ead, expectation_adjusted_distinct
from ratchet.components.types import Context, Group, Prompt, Trajectory


def test_distinct_grams_over_their_expected_number():
    """Words a b a c: 3 distinct of 4; with V = 2 four uniform draws have 2 (1 - 1/16) = 1.875 distinct."""
    assert expectation_adjusted_distinct(["a b", "a c"], 1, 2) == pytest.approx(3 / 1.875)
    assert expectation_adjusted_distinct(["a b", "a c"], 2, 10) == pytest.approx(2 / (10 * (1 - 0.81)))
    assert expectation_adjusted_distinct(["", ""], 1, 10) == 0.0


def test_text_drawn_uniformly_has_measure_one_at_any_length():
    import random

    rng = random.Random(0)
    for number in (20, 2000):
        text = " ".join(f"w{rng.randrange(50)}" for _ in range(number))
        assert expectation_adjusted_distinct([text], 1, 50) == pytest.approx(1.0, abs=0.15)


def test_answers_to_a_prompt_are_one_set():
    def group(*texts):
        return Group(
            Prompt("p", ()), tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
        )

    same, different = ead([group("a b", "a b"), group("a b", "c d")], Context(), largest=2)
    assert same == pytest.approx([0.5] * 2, abs=1e-4)
    assert different == pytest.approx([1.0] * 2, abs=1e-4)
