"""The two answers of a prompt, better first; ties stay and are counted."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def group(name: str, *rewards: float) -> Group:
    rows = tuple(Trajectory((Message(role="assistant", content=f"{name}{i}"),)) for i in range(len(rewards)))
    return Group(Prompt(name, ()), rows, {"reward.r": list(rewards), "mark": list(range(len(rewards)))})


def test_the_better_answer_is_first_and_a_tie_stays_with_margin_0() -> None:
    ctx = Context()
    groups = [group("a", 0.25, 1.0), group("b", 0.5, 0.5), group("c", 1.0, 0.5)]
    made = build("select", {"name": "ordered_pair", "reward": "reward.r"})(groups, ctx)
    assert [[t.text for t in one.trajectories] for one in made] == [["a1", "a0"], ["b0", "b1"], ["c0", "c1"]]
    assert [list(one.columns["margin"]) for one in made] == [[0.75] * 2, [0.0] * 2, [0.5] * 2]
    assert list(made[0].columns["mark"]) == [1, 0] and ctx.counts["ties"] == 1


def test_a_single_answer_makes_no_pair_and_a_third_is_refused() -> None:
    select, ctx = build("select", {"name": "ordered_pair", "reward": "reward.r"}), Context()
    assert select([group("a", 1.0)], ctx) == [] and ctx.counts["groups of one answer"] == 1
    with pytest.raises(DataError, match="expected at most two answers, got 3"):
        select([group("a", 1.0, 0.5, 0.0)], ctx)
