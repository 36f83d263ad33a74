"""Measure `labels_needed`: labels that a reward model needs for an accuracy, by what selects the pairs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratchet.components.data.instructions.traits import features, traits
from ratchet.components.errors import DataError, RecipeError
from ratchet.components.evaluation.linear import bradley_terry
from ratchet.components.piece import build, describe, piece
from ratchet.components.recipes.ranges import BelowHalf, Bool, Count, OpenShare, SelectorSpec
from ratchet.components.types import Context, Group

MEMBERS = 5
PENALTY = 0.1
"""Of the squared weights. Random pairs reach the same accuracy with 0.03 and 0.3, within a point."""
RANDOM = 2
"""Batches of random pairs at the start."""
PAIRS = 6
"""Pairs of a prompt that can be selected, at most."""

Pair = tuple[int, int]


@piece(reads=("{reward}",), paper="arXiv:1706.03741", whole=True)
def labels_needed(
    groups: Sequence[Group],
    ctx: Context,
    *,
    selector: SelectorSpec,
    reward: str = "reward.instructions",
    goal: OpenShare = 0.9,
    error: BelowHalf = 0.15,
    ties: Bool = False,
    budget: Count = 320,
    batch: Count = 32,
) -> list[list[float]]:
    """Labels after which a reward model orders held-out pairs of answers rightly in a share `goal`, where
    `selector` chooses the pairs that are labelled; every answer has this one number. Active learning: two
    thirds of the prompts, drawn by the seed, are the pool, the rest the test. The first two batches of pairs
    are random. Every further one is what `selector` keeps of the pool, with columns `margin` (of the mean
    scores) and `scores.0` ... `scores.4` (of the members). The annotator calls the answer of higher `reward`
    better and is wrong with probability `error`, the same pairs whichever selector asks.

    `ties`: pairs of equal reward can be selected too; such a label is spent and teaches nothing.

    The reward model is linear on countable traits of an answer, alone and by the family of its instruction:
    Bradley-Terry regression. Five members on bootstrap samples of the labels score the pool. Accuracy is
    counted after every batch on all pairs of a prompt with unequal rewards, and interpolated; a goal that is
    not reached within the budget counts as `budget` + `batch`. `RecipeError` for a selector that reads other
    columns and for a budget that is not two or more whole batches, `DataError` for answers without an
    instruction and for fewer pairs in the pool than the budget.
    """
    _check_columns(selector)
    if budget % batch or budget < RANDOM * batch:
        raise RecipeError(
            f"labels_needed: budget: expected a multiple of batch ({batch}), {RANDOM} or more, got {budget}"
        )
    task = read(groups, reward)
    found = accuracies(task, selector, ctx.seed, error=error, ties=ties, budget=budget, batch=batch)
    needed = batch * batches_to(goal, found, budget // batch)
    return [[needed] * len(group.trajectories) for group in groups]


def batches_to(goal: float, accuracies: Iterable[float], most: int) -> float:
    """Batches of labels after which the accuracy first reaches `goal`, interpolated from 1/2 (chance) before
    the first batch; `most` + 1 if it does not.

    >>> batches_to(0.7, [0.5, 0.6, 0.8], 3)
    2.5
    """
    before = 0.5
    if goal <= before:
        return 0.0
    for step, accuracy in enumerate(accuracies):
        if accuracy >= goal:
            return round(step + (goal - before) / (accuracy - before), 12)
        before = accuracy
    return most + 1.0


def _check_columns(selector: Mapping[str, Any]) -> None:
    known = {"margin", *(f"scores.{member}" for member in range(MEMBERS))}
    if unknown := sorted(describe("select", selector["name"]).named("reads", selector) - known):
        raise RecipeError(
            f"labels_needed: {selector['name']!r} reads {unknown[0]!r}, which pairs do not have here; they "
            f"have {', '.join(sorted(known))}"
        )


@dataclass(frozen=True)
class Task:
    """Features (N, F) and rewards (N,) of all answers; `groups` prompts, `rows` their answers."""

    x: np.ndarray
    truth: np.ndarray
    groups: Sequence[Group]
    rows: Sequence[Sequence[int]]

    def pairs(self, prompt: int) -> list[Pair]:
        rows = self.rows[prompt]
        return [(i, j) for n, i in enumerate(rows) for j in rows[n + 1 :]]

    def unequal(self, pair: Pair) -> bool:
        return bool(self.truth[pair[0]] != self.truth[pair[1]])


def read(groups: Sequence[Group], reward: str) -> Task:
    """The answers with their traits, without prompts of which an answer has no reward."""
    groups = [group for group in groups if None not in group.columns[reward]]
    if missing := [group.prompt.id for group in groups if "instruction" not in group.prompt.meta]:
        raise DataError(
            f"labels_needed: prompt {missing[0]!r} has no instruction; add the transform `instruct`"
        )
    answers = [(one, group.prompt.meta["instruction"]) for group in groups for one in group.trajectories]
    plain = [traits(one.text, asked, one.stop == "end") for one, asked in answers]
    ends = np.cumsum([len(group.trajectories) for group in groups])
    return Task(
        x=features(np.array(plain, dtype=float), [asked["family"] for _, asked in answers]),
        truth=np.array([value for group in groups for value in group.columns[reward]], dtype=float),
        groups=groups,
        rows=[range(end - len(one.trajectories), end) for end, one in zip(ends, groups, strict=True)],
    )


def split(task: Task, seed: int, ties: bool) -> tuple[dict[Pair, int], np.ndarray]:
    """Pairs of the pool with their prompts, and those of the test (N, 2), the better answer first."""
    dice = random.Random(f"pool/{seed}")
    order = dice.sample(range(len(task.groups)), len(task.groups))
    cut = len(order) * 2 // 3
    pool = dict[Pair, int]()
    for prompt in order[:cut]:
        able = [pair for pair in task.pairs(prompt) if ties or task.unequal(pair)]
        pool |= dict.fromkeys(dice.sample(able, min(PAIRS, len(able))), prompt)
    test = [pair for prompt in order[cut:] for pair in task.pairs(prompt) if task.unequal(pair)]
    if not test:
        raise DataError("labels_needed: no test prompt has answers of unequal reward; raise evaluate.prompts")
    return pool, np.array([(i, j) if task.truth[i] > task.truth[j] else (j, i) for i, j in test])


def accuracies(
    task: Task,
    selector: Mapping[str, Any],
    seed: int,
    *,
    error: float,
    ties: bool,
    budget: int,
    batch: int,
) -> Iterator[float]:
    """Accuracy on the test prompts after each batch of labels."""
    prompt_of, test = split(task, seed, ties)
    if len(prompt_of) < budget:
        raise DataError(
            f"labels_needed: the budget is {budget} labels, but the pool has {len(prompt_of)} pairs; lower "
            "budget, or raise evaluate.prompts or evaluate.responses_per_prompt"
        )
    dice, rng = random.Random(f"labels/{seed}"), np.random.default_rng(seed)
    wrong = {pair: rng.random() < error for pair in prompt_of}
    start, pool, labelled = dice.sample(list(prompt_of), RANDOM * batch), set(prompt_of), list[Pair]()
    scores = np.zeros((MEMBERS, len(task.x)))
    for step in range(budget // batch):
        chosen = start[step * batch : (step + 1) * batch]
        if step >= RANDOM:
            left = {pair: prompt for pair, prompt in prompt_of.items() if pair in pool}
            chosen = _select(task, selector, left, scores, batch, Context(seed=seed, round=step))
        pool -= {*chosen}
        for i, j in filter(task.unequal, chosen):
            better = (task.truth[i] > task.truth[j]) != wrong[i, j]
            labelled.append((i, j) if better else (j, i))
        if not labelled:  # ties alone
            yield 0.5
            continue
        pairs = np.array(labelled)
        gaps = task.x[pairs[:, 0]] - task.x[pairs[:, 1]]
        margins = (task.x[test[:, 0]] - task.x[test[:, 1]]) @ bradley_terry(gaps, PENALTY)
        yield float(((margins > 0) + 0.5 * (margins == 0)).mean())
        for member in range(MEMBERS):
            scores[member] = task.x @ bradley_terry(gaps[rng.integers(0, len(gaps), len(gaps))], PENALTY)


def _select(
    task: Task,
    selector: Mapping[str, Any],
    pool: Mapping[Pair, int],
    scores: np.ndarray,
    batch: int,
    ctx: Context,
) -> list[Pair]:
    """The next batch, by the piece of that name, from the members' scores."""
    mean, candidates = scores.mean(0), list[Group]()
    for number, ((i, j), prompt) in enumerate(pool.items()):
        first = task.rows[prompt][0]
        columns = {f"scores.{m}": [row[i], row[j]] for m, row in enumerate(scores)}
        pair = task.groups[prompt].take([i - first, j - first])
        candidates.append(
            pair.extended({**columns, "margin": [float(mean[i] - mean[j])] * 2, "number": [number] * 2})
        )
    kept = build("select", {**selector, "share": batch / len(pool)})(candidates, ctx)
    numbered = list(pool)
    return [numbered[group.columns["number"][0]] for group in kept][:batch]
