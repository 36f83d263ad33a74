"""GAE on columns: placement of rewards, environment tokens between turns, whitening."""

import numpy as np
import pytest

from ratchet.components.data.step_values import StepValues
from ratchet.components.errors import ContractError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(rewards, masks, values):
    rows = tuple(Trajectory((), {"tokens": [0] * len(m)}, m) for m in masks)
    return Group(Prompt("p", ()), rows, {"reward.reward_model": rewards, "values.old": values})


def gae(one, **options):
    return build("annotate", {"name": "advantages.gae", **options})([one], Context())


def test_scalar_reward_is_assigned_to_the_last_policy_token():
    result = gae(
        group([2.0], [[False, True, True, False]], [[0.0] * 4]), gae_lambda=1.0, gamma=0.5, whiten=False
    )
    assert result["returns"] == [[[0.0, 1.0, 2.0, 0.0]]]


def test_gae_ignores_environment_tokens():
    mask = [False, True, True, False, False, True]
    one = gae(group([1.0], [mask], [[0, 0.1, 0.2, 9, -9, 0.3]]), gamma=0.9)
    other = gae(group([1.0], [mask], [[7, 0.1, 0.2, 0, 5, 0.3]]), gamma=0.9)
    packed = gae(group([1.0], [[True] * 3], [[0.1, 0.2, 0.3]]), gamma=0.9)
    assert one == other
    assert [a for a, m in zip(one["advantages"][0][0], mask, strict=True) if m] == packed["advantages"][0][0]


def test_per_token_rewards_are_used_and_whitening_keeps_the_returns():
    one = group([1.0, 0.0], [[True] * 2] * 2, [[0.3, 0.1], [0.2, 0.4]]).with_columns(
        shaped=[[0.5, 0.5], [0.0, -1.0]]
    )
    plain, white = gae(one, reward="shaped", whiten=False), gae(one, reward="shaped")
    assert plain["returns"] == white["returns"]
    every = [a for row in white["advantages"][0] for a in row]
    assert sum(every) == pytest.approx(0, abs=1e-9)
    assert sum(a * a for a in every) / 3 == pytest.approx(1, abs=1e-6)
    with pytest.raises(ContractError, match="3 values"):
        gae(one.with_columns(shaped=[[1.0] * 3, [1.0] * 3]), reward="shaped")


def test_advantages_and_returns_of_a_large_round_are_arrays():
    """8 bytes a step rather than the 32 of a list of floats."""
    steps = 1000
    one = group([1.0] * 4, [[True] * steps] * 4, [[i / 7 for i in range(steps)]] * 4)
    for rows in gae(one).values():
        for row in rows[0]:
            assert isinstance(row, StepValues) and np.asarray(row).nbytes <= 8 * steps
