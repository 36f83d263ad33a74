"""Ratings of a simulated annotator, by hand where there is no error."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def rated(rows: list[tuple[float, float]], **options) -> list[float]:
    columns = {"reward.a": [a for a, _ in rows], "reward.b": [b for _, b in rows]}
    group = Group(Prompt("p", ()), tuple(Trajectory(()) for _ in rows), columns)
    spec = {"name": "rewards.ratings", "rewards": ["reward.a", "reward.b"], **options}
    return build("annotate", spec)([group], Context(seed=1))["reward.rating"][0]


def test_aspects_are_rated_from_1_to_5_and_averaged() -> None:
    """0.30 is rated 2 (1 + 1.2), 0.9 is rated 5 (4.6)."""
    assert rated([(0.3, 0.9), (0.0, 1.0)], noise=0.0) == [3.5, 3.0]


def test_an_overall_rating_is_of_the_mean_from_1_to_10() -> None:
    """Means 0.6 and 0.5: 1 + 5.4 and 1 + 4.5, to the even integer."""
    assert rated([(0.3, 0.9), (0.0, 1.0)], noise=0.0, by="answer") == [6.0, 6.0]


def test_errors_are_independent_so_that_the_mean_of_aspects_errs_less() -> None:
    rows = [(0.5, 0.5)] * 400
    aspect, answer = (rated(rows, noise=0.1, by=by) for by in ("aspect", "answer"))
    assert pstdev(aspect) / 4 == pytest.approx((0.1**2 + 1 / (12 * 16)) ** 0.5 / 2**0.5, rel=0.15)
    assert pstdev(answer) / 9 == pytest.approx((0.1**2 + 1 / (12 * 81)) ** 0.5, rel=0.15)
    assert fmean(aspect) == pytest.approx(3.0, abs=0.1)
    assert rated(rows, noise=0.1) == aspect, "a function of seed, prompt, answer and aspect"
