"""Weights of reward-weighted regression and of C-RLFT."""

import math

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def weights(name, columns, **options):
    (number,) = {len(column) for column in columns.values()}
    group = Group(Prompt("p", ()), tuple(Trajectory(()) for _ in range(number)), columns)
    return build("annotate", {"name": f"advantages.{name}", **options})([group], Context())["sample_weight"][
        0
    ]


def test_reward_weights_are_the_group_size_times_the_softmax():
    found = weights("reward_weights", {"reward.r": [0.0, math.log(3) * 0.5]}, reward="reward.r", beta=0.5)
    assert found == pytest.approx([0.5, 1.5])
    assert weights("reward_weights", {"reward.r": [0.7] * 3}, reward="reward.r") == pytest.approx([1.0] * 3)
    sharp = weights("reward_weights", {"reward.r": [1000.0, 0.0]}, reward="reward.r", beta=1e-3)
    assert sharp == pytest.approx([2.0, 0.0])


def test_class_weights_are_those_of_the_released_code():
    assert weights("reward_weights.by_class", {"label": [1.0, 0.0, 1.0]}) == [1.0, 0.1, 1.0]
    assert weights("reward_weights.by_class", {"label": [1.0, 0.0]}, expert=2.0, other=0.5) == [2.0, 0.5]
