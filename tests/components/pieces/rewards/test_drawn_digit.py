"""Probabilities of the wanted digit: worked by hand, against scikit-learn, and right on real images."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.rewards import drawn_digit as rewards
from ratchet.components.pieces.testbeds.noised_digits import portion
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def scored(name: str, texts: list[str], answer: str | None = "3") -> list[float | None]:
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in texts)
    made = build("annotate", {"name": name})([Group(Prompt("p", (), answer), rows)], Context())
    return list(made[f"reward.{name.rpartition('.')[2]}"][0])


def test_similarities_by_hand() -> None:
    """Images of 0, 1 and 3 other pixels, of the digits 4, 4 and 9: e^0 + e^-1 to e^-3."""
    seen = np.array([rewards.pixels(codes + "A" * 15) for codes in ("P", "O", "B")])
    found = rewards.by_similarity(seen, np.array([4, 4, 9]), "P" + "A" * 15)
    total = 1 + math.exp(-1) + math.exp(-3)
    assert found[4] == pytest.approx((1 + math.exp(-1)) / total)
    assert found[9] == pytest.approx(math.exp(-3) / total) and found.sum() == pytest.approx(1)


def test_pixels_of_a_symbol_are_its_bits_from_the_lowest() -> None:
    """B is 1, the upper left pixel; K is 10, the second and the fourth."""
    assert rewards.pixels("BK" + "A" * 14)[:8].tolist() == [1, 0, 0, 0, 0, 1, 0, 1]
    assert rewards.pixels("BK" + "A" * 14).sum() == 3


def test_the_regression_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    seen = portion("first")[:120]
    inputs = np.array([[*rewards.pixels(one.codes), 1.0] for one in seen])
    model = LogisticRegression(
        C=1 / (rewards.PENALTY * len(seen)), fit_intercept=False, max_iter=2000, tol=1e-8
    ).fit(inputs, [one.digit for one in seen])
    weights = rewards.regression(seen)
    for one in portion("policy")[:20]:
        expected = model.predict_proba([[*rewards.pixels(one.codes), 1.0]])[0]
        assert rewards.by_regression(weights, one.codes) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "least"), [("rewards.drawn_digit", 0.85), ("rewards.drawn_digit.recognised", 0.88)]
)
def test_real_images_that_no_classifier_saw_are_recognised(name: str, least: float) -> None:
    """The wanted digit has more than half in nine of ten images, and another digit in few."""
    some = portion("policy")[:200]
    own = [scored(name, [one.codes], str(one.digit))[0] for one in some]
    other = [scored(name, [one.codes], str((one.digit + 1) % 10))[0] for one in some]
    assert sum(value is not None and value > 0.5 for value in own) / 200 > least
    assert sum(value is not None and value > 0.5 for value in other) / 200 < 0.05


@pytest.mark.parametrize("name", ["drawn_digit", "drawn_digit.recognised", "drawn_digit.ink"])
def test_a_text_that_is_no_image_gets_0(name: str) -> None:
    assert scored(f"rewards.{name}", ["", "A" * 15, "It is 3.", "P" * 17]) == [0.0] * 4


@pytest.mark.parametrize("name", ["drawn_digit", "drawn_digit.recognised"])
@pytest.mark.parametrize("answer", [None, "three", "12", ""])
def test_a_prompt_without_a_digit_is_a_failed_reward(name: str, answer: str | None) -> None:
    assert scored(f"rewards.{name}", ["A" * 16], answer) == [None]


def test_ink_is_the_share_of_pixels() -> None:
    """P has four pixels, B one: 5 of 64."""
    assert scored("rewards.drawn_digit.ink", [" PB" + "A" * 14, "P" * 16], None) == [5 / 64, 1.0]
