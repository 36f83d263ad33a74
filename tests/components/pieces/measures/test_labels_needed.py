"""Measure `labels_needed`, on answers whose obedience is a visible trait."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.piece import build
from ratchet.components.pieces.measures.labels_needed import accuracies, batches_to, read, split
from ratchet.components.types import Context, Group, Prompt, Trajectory

SELECTORS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "small_margins": {},
    "disagreement": {"members": [f"scores.{member}" for member in range(5)]},
    "diverse": {},
}


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    """90 prompts of two families of instructions with six answers each, of which four in ten obey; one reward
    in ten is wrong.
    """
    dice, made = random.Random(3), list[Group]()
    said = ("yes", "no", "so it is", "maybe", "never")
    for number in range(90):
        family = ("quotation", "end_question")[number % 2]
        texts, values = [], []
        for _ in range(6):
            good = dice.random() < 0.4
            text = f"{dice.choice(said)} {dice.choice(said)} {dice.choice(said)}"
            texts.append({"quotation": f'"{text}"', "end_question": f"{text}?"}[family] if good else text)
            values.append(float(good == (dice.random() < 0.9)))
        asked = {"family": family, "params": {}, "text": family}
        answers = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
        prompt = Prompt(str(number), ({"role": "user", "content": "why?"},), meta={"instruction": asked})
        made.append(Group(prompt, answers, {"reward.instructions": values}))
    return made


def needed(groups: Sequence[Group], *, seed: int = 0, **options: Any) -> float:
    options = {"selector": {"name": "uniform"}, "batch": 8, "budget": 64, **options}
    rows = build("measure", {"name": "labels_needed", **options})(groups, Context(seed=seed))
    assert [len(row) for row in rows] == [len(group.trajectories) for group in groups]
    (value,) = {value for row in rows for value in row}
    return value


def test_the_first_crossing_is_interpolated_and_a_goal_out_of_reach_is_one_batch_more() -> None:
    assert batches_to(0.7, [0.5, 0.6, 0.8, 0.6], 4) == 2.5
    assert batches_to(0.75, [1.0], 1) == 0.5, "from one half without any label"
    assert batches_to(0.9, [0.5, 0.6, 0.8], 3) == 4


@pytest.mark.parametrize("name", SELECTORS)
def test_a_reward_model_learns_whichever_pairs_are_selected(name: str, groups: list[Group]) -> None:
    selector = {"name": name, **SELECTORS[name]}
    assert 0 < needed(groups, selector=selector, error=0.0, goal=0.7) < 64
    assert needed(groups, selector=selector, error=0.0, goal=0.99) == 72, "no model can know the wrong ones"


def test_all_selectors_agree_once_every_pair_of_the_pool_is_labelled(groups: list[Group]) -> None:
    """A pair is labelled once, with one label whichever selector asks, and the fit has one minimum."""
    task = read(groups[:24], "reward.instructions")
    every = len(split(task, 1, ties=False)[0])
    first, *others = (
        [*accuracies(task, {"name": n, **o}, 1, error=0.2, ties=False, budget=every, batch=1)]
        for n, o in SELECTORS.items()
    )
    assert len(first) == every
    for other in others:
        assert other != first and other[-1] == pytest.approx(first[-1], abs=0.02)


def test_no_prompt_of_the_pool_is_in_the_test_whose_better_answer_stands_first(groups: list[Group]) -> None:
    task = read(groups, "reward.instructions")
    pool, pairs = split(task, 2, ties=True)
    tested = {row // 6 for row in pairs.flatten().tolist()}
    assert len({*pool.values()}) == 60 and not tested & {*pool.values()} and len(tested) > 20
    assert all(i // 6 == j // 6 and task.truth[i] > task.truth[j] for i, j in pairs)


def test_wrong_labels_and_ties_cost_labels(groups: list[Group]) -> None:
    def mean(**options: Any) -> float:
        return sum(needed(groups, seed=seed, goal=0.75, **options) for seed in range(6)) / 6

    assert mean(error=0.0) < mean(error=0.3)
    assert mean(error=0.0) < mean(error=0.0, ties=True)
    assert 0 < mean(ties=True, batch=1, budget=8) <= 9, "the first labels can be ties alone"


def test_the_seed_draws_the_experiment(groups: list[Group]) -> None:
    assert needed(groups, seed=1, goal=0.7) == needed(groups, seed=1, goal=0.7)
    assert len({needed(groups, seed=seed, goal=0.7) for seed in range(4)}) > 1


def test_what_cannot_be_measured_is_refused(groups: list[Group]) -> None:
    with pytest.raises(RecipeError, match=r"best_worst.*reward\.other"):
        needed(groups, selector={"name": "best_worst", "reward": "reward.other"})
    for budget in (8, 20):
        with pytest.raises(RecipeError, match=f"batch.*{budget}"):
            needed(groups, budget=budget)
    with pytest.raises(DataError, match="4000 labels"):
        needed(groups, budget=4000)
    bare = [Group(Prompt("bare", one.prompt.messages), one.trajectories, one.columns) for one in groups]
    with pytest.raises(DataError, match=r"'bare'.*instruct"):
        needed(bare)
