"""Advantages per turn worked by hand, and SCoRe's two stages as special cases."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.advantages.turn_progress import turn_progress
from ratchet.components.types import Context, Group, Prompt, Trajectory


def episodes(*rewards: list[float]) -> Group:
    """Each turn has two tokens, after one token of the prompt or the environment."""
    turn, end, given = [], [], []
    for row in rewards:
        turn.append([float(n) for k in range(len(row)) for n in (0, k + 1, k + 1)])
        end.append([float(n) for _ in row for n in (0, 0, 1)])
        given.append([float(n) for r in row for n in (0, 0, r)])
    paths = tuple(Trajectory((), {"tokens": [1] * len(t)}, [bool(k) for k in t]) for t in turn)
    return Group(Prompt("p", ()), paths, {"turn": turn, "turn_end": end, "turn_reward": given})


def turns(group: Group, **options: float) -> list[list[float]]:
    """The advantage of each turn of each episode."""
    found = turn_progress([group], Context(), **options)
    assert all(a[1::3] == a[2::3] and set(a[0::3]) == {0.0} for a in found["advantages"][0])
    assert found["turn.first"][0] == [[float(t == 1) for t in row] for row in group.columns["turn"]]
    return [row[1::3] for row in found["advantages"][0]]


def test_stage_one_pays_the_second_turn_alone() -> None:
    group = episodes([1, 0], [0, 1], [0, 0])
    assert turns(group, first=0.0, bonus=0.0) == [[0.0, -0.5], [0.0, 1.0], [0.0, -0.5]]


def test_the_bonus_pays_progress_in_the_second_turn_and_never_the_first() -> None:
    """Rewards of turn 2 with bonus 10: 0 + 10 (0 - 1) = -10, 1 + 10 = 11, 1 + 0 = 1."""
    group = episodes([1, 0], [0, 1], [1, 1])
    first, second, third = turns(group, first=1.0, bonus=10.0)
    assert first == [0.5, -10 - 6] and second == [-1.0, 11 + 4.5] and third == [0.5, 1 - 0.5]


def test_discount_one_without_bonus_is_the_return_of_the_episode() -> None:
    group = episodes([1, 0], [0, 1], [1, 1])
    assert turns(group, bonus=0.0, discount=1.0) == [[1 - 1.5, -1.0], [1 - 1.5, 0.5], [2 - 1.0, 0.5]]


def test_a_discount_reaches_beyond_the_next_turn() -> None:
    """Returns 1 + (0 + 1/2)/2 = 1.25, 0.5, 1 and 0 + (1 + 0)/2 = 0.5, 1, 0."""
    group = episodes([1, 0, 1], [0, 1, 0])
    assert turns(group, bonus=0.0, discount=0.5) == [[0.75, -0.5, 1.0], [-0.75, 0.5, -1.0]]


def test_a_turn_that_no_other_episode_reaches_has_no_advantage() -> None:
    assert turns(episodes([0, 1], [1]), bonus=0.0) == [[-1.0, 0.0], [1.0]]


def test_answers_without_turns_are_refused() -> None:
    group = Group(
        Prompt("p", ()), (Trajectory(()),), {"turn": [[0]], "turn_end": [[0]], "turn_reward": [[0]]}
    )
    with pytest.raises(DataError, match=r"'p'.*no turn.*rollout `episodes`"):
        turn_progress([group], Context())
