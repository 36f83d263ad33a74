"""Success within a number of turns, on episodes written by hand."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.measures.solved_within import solved_within
from ratchet.components.pieces.rewards.environment import gain, last
from ratchet.components.types import Context, Group, Prompt, Span, Trajectory


def episode(*rewards: float | None, **more) -> Trajectory:
    spans = [Span(4 * k, 4 * k + 2, reward) for k, reward in enumerate(rewards)]
    seen = [Span(4 * k + 2, 4 * k + 4, 1.0, actor="environment", kind="observe") for k in range(len(rewards))]
    return Trajectory((), spans=tuple(sorted([*spans, *seen], key=lambda s: s.start)), **more)


def test_an_episode_is_solved_within_the_turns_of_the_policy() -> None:
    group = Group(
        Prompt("p", ()),
        (episode(0, 0, 1), episode(1), episode(0.5, None), episode(stop="error")),
    )
    found = {n: solved_within([group], Context(), turns=n) for n in (1, 2, 3)}
    assert found == {1: [[0, 1, 0, 0]], 2: [[0, 1, 0, 0]], 3: [[1, 1, 0, 0]]}
    assert solved_within([group], Context(), turns=1, at_least=0.5) == [[0, 1, 1, 0]]


def test_answers_that_are_no_episodes_are_refused() -> None:
    with pytest.raises(DataError, match=r"'p'.*without turns.*`episodes`"):
        solved_within([Group(Prompt("p", ()), (Trajectory(()),))], Context())


def test_gain_is_last_minus_first() -> None:
    scores = [{"first": a, "last": b} for a, b in ((0.0, 1.0), (1.0, 0.0), (1.0, 1.0))]
    group = Group(Prompt("p", ()), tuple(Trajectory((), meta={"score": s}) for s in scores))
    assert gain([group], Context())["reward.gain"] == [[1.0, -1.0, 0.0]]
    assert last([group], Context())["reward.last"] == [[1.0, 0.0, 1.0]]
