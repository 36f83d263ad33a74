"""Error rates of annotators without known answers: the model of Dawid and Skene (Applied Statistics 28,
1979), with one accuracy an annotator.

The answers of an item are stored in arbitrary order, so a confusion matrix between indices has one free
number: annotator a chooses the better answer with probability p_a and each other one with
(1 - p_a) / (K - 1). All K answers are equally likely to be the better one. By the same symmetry a tie or a
skipped item has the same probability whichever answer is better: it carries no information about the answer
and is left out. A unit with a known answer (planted) has its class fixed, which anchors the rest.

Two annotators alone determine one equation for two accuracies; EM from equal starts then divides the error
equally. Three annotators on common units, or planted items, identify each accuracy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.components.errors import DataError

PRIOR = (2.0, 1.0)
"""Pseudo-counts of right and wrong choices of each annotator: few labels do not give an error rate of 0."""
START, FLOOR = 0.75, 1e-9
CHAINS, SWEEPS, BURN_IN, MEMORY = 100, 80, 20, 400_000


@dataclass(frozen=True)
class Votes:
    """Choices of A annotators on U units with up to K answers.

    table (A, U, K): 1 where the annotator chose that answer. options (U,): number of answers. known (U,):
    index of the known better answer, or -1.
    """

    annotators: tuple[str, ...]
    units: tuple[str, ...]
    table: np.ndarray
    options: np.ndarray
    known: np.ndarray


@dataclass(frozen=True)
class Fit:
    """The fitted model. accuracy (A,): the mode. posterior (U, K): probability that each answer is the better
    one. objective: log posterior density (up to a constant) before each step of EM.
    """

    votes: Votes
    accuracy: np.ndarray
    posterior: np.ndarray
    objective: tuple[float, ...]
    prior: tuple[float, float] = PRIOR
    seed: int = 0

    @functools.cached_property
    def draws(self) -> np.ndarray:
        """(S, A): accuracies drawn from their posterior by Gibbs sampling (truth given accuracies, accuracies
        given truth), started at the mode.
        """
        return _draws(self.votes, self.accuracy[None], self.prior, self.seed)

    def error(self, annotator: str, level: float = 0.95) -> tuple[float, float, float]:
        """Error rate of an annotator: mode, and the ends of the credible interval."""
        index = self.votes.annotators.index(annotator)
        low, high = np.quantile(1 - self.draws[:, index], [(1 - level) / 2, (1 + level) / 2])
        mode = float(1 - self.accuracy[index])
        return mode, min(mode, float(low)), max(mode, float(high))


def collect(
    choices: Sequence[tuple[str, str, int]], options: Mapping[str, int], known: Mapping[str, int]
) -> Votes:
    """Votes from (annotator, unit, chosen index). `options`: answers of each unit. `DataError` for a choice
    or a known answer that the unit does not have.
    """
    annotators, units = sorted({one[0] for one in choices}), list(dict.fromkeys(one[1] for one in choices))
    row, column = ({name: i for i, name in enumerate(names)} for names in (annotators, units))
    table = np.zeros((len(annotators), len(units), max([options[unit] for unit in units], default=2)))
    for annotator, unit, index in choices:
        if not 0 <= index < options[unit]:
            raise DataError(
                f"unit {unit}: {annotator} chose answer {index}, expected an index below {options[unit]}"
            )
        table[row[annotator], column[unit], index] = 1
    for unit in units:
        if not -1 <= known.get(unit, -1) < options[unit]:
            raise DataError(
                f"unit {unit}: known answer is {known[unit]}, expected an index below {options[unit]}"
            )
    return Votes(
        tuple(annotators),
        tuple(units),
        table,
        np.array([options[unit] for unit in units], dtype=int),
        np.array([known.get(unit, -1) for unit in units], dtype=int),
    )


def fit(
    votes: Votes,
    *,
    prior: tuple[float, float] = PRIOR,
    tolerance: float = 1e-8,
    steps: int = 1000,
    seed: int = 0,
) -> Fit:
    """The mode of the posterior by expectation maximisation, which never lowers the objective."""
    made, objective = votes.table.sum(2), list[float]()
    accuracy = np.full((1, len(votes.annotators)), START)
    for _ in range(steps):
        posterior, evidence = unit_posterior(votes, accuracy)
        kept = np.clip(accuracy, FLOOR, 1 - FLOOR)
        objective.append(
            float(evidence.sum() + prior[0] * np.log(kept).sum() + prior[1] * np.log1p(-kept).sum())
        )
        right = _right(votes, posterior)
        after = (right + prior[0]) / np.maximum(made.sum(1) + sum(prior), FLOOR)
        change, accuracy = float(np.abs(after - accuracy).max(initial=0)), after
        if change < tolerance:
            break
    posterior, _ = unit_posterior(votes, accuracy)
    return Fit(votes, accuracy[0], posterior[0], tuple(objective), prior, seed)


def unit_posterior(
    votes: Votes, accuracy: np.ndarray, without: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Probability that each answer is the better one (R, U, K) and log evidence of each unit (R, U), given
    accuracies (R, A); `without` leaves out the votes of one annotator.
    """
    table = votes.table
    if without is not None:
        table = np.concatenate([table[:without], table[without + 1 :]])
        accuracy = np.delete(accuracy, without, axis=1)
    accuracy = np.clip(accuracy, FLOOR, 1 - FLOOR)
    people, units, answers = table.shape
    right, wrong = np.log(accuracy), np.log1p(-accuracy)
    flat = table.reshape(people, units * answers)
    score = ((right - wrong) @ flat).reshape(len(accuracy), units, answers) + (wrong @ table.sum(2))[
        :, :, None
    ]
    others = table.sum((0, 2))[:, None] - table.sum(0)
    score = score - others * np.log(np.maximum(votes.options - 1, 1))[:, None]
    possible = np.arange(answers) < votes.options[:, None]
    fixed = votes.known[:, None]
    possible &= (fixed < 0) | (np.arange(answers) == fixed)
    score = np.where(possible, score - np.log(votes.options)[:, None], -np.inf)
    top = score.max(2, keepdims=True)
    exponent = np.exp(score - top)
    total = exponent.sum(2, keepdims=True)
    return exponent / total, (top + np.log(total))[:, :, 0]


def _right(votes: Votes, truth: np.ndarray) -> np.ndarray:
    """(R, A): expected number of right choices, given the (R, U, K) probabilities of the better answer."""
    people, units, answers = votes.table.shape
    return truth.reshape(len(truth), units * answers) @ votes.table.reshape(people, units * answers).T


def _draws(votes: Votes, start: np.ndarray, prior: tuple[float, float], seed: int) -> np.ndarray:
    rng, made = np.random.default_rng(seed), votes.table.sum((1, 2))
    chains = int(np.clip(MEMORY // max(votes.table[0].size if len(votes.table) else 1, 1), 10, CHAINS))
    accuracy, kept = np.repeat(start, chains, axis=0), []
    for sweep in range(SWEEPS):
        posterior, _ = unit_posterior(votes, accuracy)
        drawn = (posterior.cumsum(2) < rng.random(posterior.shape[:2])[:, :, None]).sum(2)
        truth = np.arange(posterior.shape[2]) == np.minimum(drawn, votes.options - 1)[:, :, None]
        right = _right(votes, truth.astype(float))
        accuracy = rng.beta(right + prior[0] + 1, made - right + prior[1] + 1)
        if sweep >= BURN_IN:
            kept.append(accuracy)
    return np.concatenate(kept)
