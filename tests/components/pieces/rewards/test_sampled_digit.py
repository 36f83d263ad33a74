"""Classifiers of sampled images: numbers by hand, and what they know."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.sampled_digit import by_regression, by_similarity, image_of
from ratchet.components.pieces.testbeds.gaussian_digits import PORTIONS, portion
from ratchet.components.types import Context, Group, Prompt, Trajectory

REWARDS = ("rewards.sampled_digit", "rewards.sampled_digit.similar")


def drawn(pixels: list[float]) -> Trajectory:
    return Trajectory((), {"observations": [[0.0]] * 2, "actions": [[0.0] * 64, pixels]}, [True] * 2)


def test_similarities_worked_by_hand() -> None:
    """Squared distances 0, 2 and 4 to images of a 1, a 2 and a 2, WIDTH 1: 1, e^-1 and e^-2, of which the 2
    has (0.367879 + 0.135335) / 1.503215 = 0.334759.
    """
    seen = np.zeros((3, 64))
    seen[1, :2], seen[2, :4] = 1, 1
    found = by_similarity(seen, np.array([1, 2, 2]), np.zeros(64))
    assert found[:4].tolist() == pytest.approx([0, 0.665241, 0.334759, 0], abs=1e-6)


def test_the_regressions_probability_worked_by_hand() -> None:
    """Logits 2 (1) + log 3 for the 4 and 0 for the others: 3 e^2 / (3 e^2 + 9) = 0.711235."""
    weights = np.zeros((65, 10))
    weights[0, 4], weights[64, 4] = 2, math.log(3)
    image = np.zeros(64)
    image[0] = 1
    assert by_regression(weights, image)[4] == pytest.approx(0.711235, abs=1e-6)


def test_portions_share_no_image() -> None:
    images = [tuple(image) for name in PORTIONS for image, _ in portion(name)]
    assert len(images) == sum(PORTIONS.values()) and len(set(images)) == len(images)
    with pytest.raises(DataError, match="expected a portion out of policy"):
        portion("third")


@pytest.mark.parametrize(("reward", "least"), zip(REWARDS, (0.8, 0.9), strict=True))
def test_real_images_are_recognised_and_others_are_not(reward: str, least: float) -> None:
    rows = portion("policy")[:200]
    right = [
        Group(Prompt(str(i), (), str(d)), (drawn([p / 8 - 1 for p in x]),)) for i, (x, d) in enumerate(rows)
    ]
    wrong = [Group(Prompt("w", (), str((int(g.prompt.answer or 0) + 1) % 10)), g.trajectories) for g in right]
    means = []
    for groups in (right, wrong):
        columns = build("annotate", {"name": reward})(groups, Context())
        (name,) = (name for name in columns if not name.endswith(".status"))
        means.append(np.mean(columns[name]))
    assert means[0] > least and means[1] < 0.05


def test_an_image_is_the_last_action_cut_to_its_range() -> None:
    assert image_of(drawn([3.0, -0.5, *[-2.0] * 62]))[:3].tolist() == [1.0, -0.5, -1.0]
    failed = build("annotate", {"name": REWARDS[0]})(
        [Group(Prompt("a", (), "3"), (Trajectory(({"role": "assistant", "content": "3"},)),))], Context()
    )
    assert failed["reward.sampled_digit.status"][0][0].startswith("failed: DataError")
    nameless = build("annotate", {"name": REWARDS[0]})(
        [Group(Prompt("a", (), "x"), (drawn([0.0] * 64),))], Context()
    )
    assert "expected a digit" in nameless["reward.sampled_digit.status"][0][0]
