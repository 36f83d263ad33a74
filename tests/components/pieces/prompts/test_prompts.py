"""Prompt samplers: which prompts each round gets, and resume."""

from pathlib import Path

import pytest

import ratchet.components.pieces.prompts
from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.types import Group, Prompt, Trajectory

PROMPTS = [Prompt(f"{i:02}", ()) for i in range(20)]


def choose(name, number, *, prompts=PROMPTS, count=6, seed=0, **options):
    return [
        p.id
        for p in build("prompts", {"name": name, **options})(
            prompts, count=count, round=number, rounds=3, seed=seed
        )
    ]


def test_disjoint():
    rounds = [choose("disjoint", r) for r in (1, 2, 3)]
    assert len({p for r in rounds for p in r}) == 18
    assert choose("disjoint", 2, prompts=PROMPTS[::-1]) == rounds[1]
    assert choose("disjoint", 2, seed=1) != rounds[1]
    with pytest.raises(RecipeError, match=r"^the sampler `disjoint` .*21.*20; lower.*to 6"):
        choose("disjoint", 1, count=7)
    with pytest.raises(RecipeError, match=r"has 2; use fewer rounds$"):
        choose("disjoint", 1, prompts=PROMPTS[:2])


@pytest.mark.parametrize(
    "name", [f.stem for f in Path(ratchet.components.pieces.prompts.__path__[0]).glob("[a-z]*.py")]
)
def test_prompt_choice_is_independent_of_the_number_of_rounds(name):
    """A run with more or fewer rounds reuses its finished rounds: `rounds` is not part of their keys."""
    few, many = (
        [p.id for p in build("prompts", {"name": name})(PROMPTS, count=4, round=2, rounds=n, seed=0)]
        for n in (2, 5)
    )
    assert few == many and len(few) == 4


def test_uniform():
    assert len(set(choose("uniform", 1))) == 6
    assert choose("uniform", 1) == choose("uniform", 1, prompts=PROMPTS[::-1]) != choose("uniform", 2)
    with pytest.raises(RecipeError, match="21"):
        choose("uniform", 1, count=21)


def test_difficulty_pool_prefers_the_half_solved_and_resumes():
    pool = build("prompts", {"name": "difficulty_pool", "floor": 0.001})
    rows = (Trajectory(()), Trajectory(()))
    pool.update(
        [Group(p, rows, {"reward.exact_answer": [1.0, float(i >= 10)]}) for i, p in enumerate(PROMPTS)]
    )
    drawn = [p.id for r in range(30) for p in pool(PROMPTS, 5, r, 30, 0)]
    assert sum(int(p) < 10 for p in drawn) / len(drawn) > 0.95
    other = build("prompts", {"name": "difficulty_pool", "floor": 0.001})
    other.restore(pool.state())
    assert other(PROMPTS, 5, 7, 30, 0) == pool(PROMPTS, 5, 7, 30, 0)


def test_difficulty_pool_keeps_its_momentum_of_the_mean_before():
    """From 1 by a round without a right answer: 3/4 with a momentum of 3/4."""
    pool = build("prompts", {"name": "difficulty_pool", "momentum": 0.75})
    for right in (1.0, 0.0):
        pool.update([Group(PROMPTS[0], (Trajectory(()),), {"reward.exact_answer": [right]})])
    assert pool.state() == {"solved": {PROMPTS[0].id: 0.75}}


@pytest.mark.parametrize("floor", [0.0, 1e-6])
def test_difficulty_pool_with_little_or_no_floor_draws_by_chance_among_equals(floor: float) -> None:
    pool = build("prompts", {"name": "difficulty_pool", "floor": floor})
    pool.update([Group(p, (Trajectory(()),), {"reward.exact_answer": [1.0]}) for p in PROMPTS[:19]])
    drawn = [[p.id for p in pool(PROMPTS, 3, r, 9, 0)] for r in range(9)]
    assert all(ids[0] == "19" for ids in drawn) and len({*map(tuple, drawn)}) == 9
