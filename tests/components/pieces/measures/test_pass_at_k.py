"""The unbiased estimate of pass@k against all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(*rewards: float | None) -> Group:
    rows = tuple(Trajectory(({"role": "assistant", "content": "x"},)) for _ in rewards)
    return Group(Prompt("p", ({"role": "user", "content": "q"},)), rows, {"reward.a": list(rewards)})


def pass_at(k: int, *rewards: float | None, **options: float) -> float:
    measure = build("measure", {"name": "pass_at_k", "reward": "reward.a", "k": k, **options})
    (row,) = measure([group(*rewards)], Context())
    assert len(row) == len(rewards) and len(set(row)) == 1
    return row[0]


def test_one_is_the_mean_and_all_is_the_maximum() -> None:
    assert pass_at(1, 1.0, 0.0, None, 1.0) == pytest.approx(0.5)
    assert pass_at(4, 0.0, 0.0, 0.0, 1.0) == 1.0 and pass_at(4, 0.0, 0.0, 0.0, 0.0) == 0.0


def test_it_is_the_share_of_subsets_with_an_answer_that_passes() -> None:
    rewards = (0.2, 0.9, 0.1, 0.6, 0.4)
    for k in (2, 3):
        share = [max(subset) >= 0.5 for subset in combinations(rewards, k)]
        assert pass_at(k, *rewards, at_least=0.5) == pytest.approx(sum(share) / len(share))


def test_fewer_answers_than_k_are_an_error() -> None:
    with pytest.raises(DataError, match=r"'p' has 2 answers, but k is 3; raise evaluate"):
        pass_at(3, 1.0, 0.0)
