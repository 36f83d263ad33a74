"""Quality of preference labels: agreement, error, consistency and biases of annotators.

Terms: a *unit* is an item together with its repetitions; *planted* items have a known better answer. Ties,
"both bad" and skipped items are counted, and enter agreement (except skipped ones), but no accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ratchet.components.evaluation.bootstrap import Interval, wilson
from ratchet.components.labels.agreement import alpha_interval, category_counts
from ratchet.components.labels.choice_model import conditional_logit
from ratchet.components.labels.dawid_skene import Fit, collect, fit, unit_posterior
from ratchet.components.labels.labels import Item, Label, item_of

GOOD_ERROR = 0.15
"""Error rate of the annotators from which `chance_test` tells a random one."""
SIGNIFICANCE = 0.01
"""Bound on the probability that `chance_test` finds a good annotator random."""
FEATURES = ("log length", "shown first", "support by others")


class Labels:
    """Items joined with their labels, and the Dawid-Skene model of the choices. An annotator's first choice
    of a unit is the vote; later ones (repeated items) only serve to test consistency. `DataError` for a label
    of an unknown item or an index that the item does not have.
    """

    def __init__(self, items: Sequence[Item], labels: Sequence[Label], *, seed: int = 0) -> None:
        self.items = {item.id: item for item in items}
        for label in labels:
            item_of(label, self.items)
        self.labels = sorted(labels, key=lambda label: label.time)
        self.annotators = sorted({label.annotator for label in labels})
        self.choices: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in self.annotators}
        for label in self.labels:
            if label.choice is not None:
                self.choices[label.annotator][self.unit(label)].append(label.choice)
        self.known = {item.id: item.planted for item in items if item.planted is not None}
        votes = [(who, unit, made[0]) for who, units in self.choices.items() for unit, made in units.items()]
        options = {unit: len(self.items[unit].answers) for _, unit, _ in votes}
        self.model: Fit = fit(collect(votes, options, self.known), seed=seed)
        self.position = {unit: u for u, unit in enumerate(self.model.votes.units)}

    def unit(self, label: Label) -> str:
        """Id of the item of which the label's item is a repetition, or its own."""
        first = self.items[label.item].repeat_of
        return first if first in self.items else label.item

    def by(self, annotator: str) -> list[Label]:
        return [label for label in self.labels if label.annotator == annotator]

    def support(self, annotator: str) -> Mapping[str, np.ndarray]:
        """Unit → probability (K,) that each answer is the better one, by everyone but this annotator."""
        if annotator not in self.model.votes.annotators:
            return {}
        index = self.model.votes.annotators.index(annotator)
        found, _ = unit_posterior(self.model.votes, self.model.accuracy[None], without=index)
        return {
            unit: found[0, u, : self.model.votes.options[u]]
            for unit, u in self.position.items()
            if unit in self.choices[annotator]
        }


def measure(
    items: Sequence[Item], labels: Sequence[Label], *, good_error: float = GOOD_ERROR, seed: int = 0
) -> dict[str, Any]:
    """Every measure as JSON-serialisable numbers: `labels`, `items`, `verdicts`, `agreement` (Krippendorff's
    alpha over verdicts and chosen answers of unplanted units), `effects` (conditional logit of all choices on
    length and position) and `annotators`, name → see `annotator_measures`.
    """
    joined = Labels(items, labels, seed=seed)
    return {
        "labels": len(labels),
        "items": len({joined.unit(label) for label in joined.labels}),
        "verdicts": dict(Counter(label.verdict for label in joined.labels)),
        "agreement": alpha_interval(category_counts(_ratings(joined)), seed=seed),
        "effects": dict(conditional_logit(_features(joined, joined.annotators), FEATURES)),
        "annotators": {
            name: annotator_measures(joined, name, good_error=good_error) for name in joined.annotators
        },
    }


def random_annotators(items: Sequence[Item], labels: Sequence[Label], *, seed: int = 0) -> list[str]:
    """Annotators whose choices `measure` cannot tell from choices at random."""
    joined = Labels(items, labels, seed=seed)
    return [
        name
        for name in joined.annotators
        if annotator_measures(joined, name)["chance"]["verdict"] == "random"
    ]


def annotator_measures(joined: Labels, name: str, *, good_error: float = GOOD_ERROR) -> dict[str, Any]:
    """Counts and seconds; `error` (Dawid-Skene, credible interval), `planted` (accuracy on known answers; a
    tie is not right), `consistent` (same verdict on repeated items), `first` (choices of the answer shown
    first; the chance value is the mean of 1/K, `first_chance`) and `longer` (choices of the longest of
    unequal answers) with Wilson intervals, `effects`, and `chance` (see `chance_test`; an annotator found
    random whose interval of `error` is below chance has the verdict "poor"). None without data; an imported
    label without a time has 0 seconds, which do not count.
    """
    labels = joined.by(name)
    verdicts = Counter(label.verdict for label in labels)
    chosen = [label for label in labels if label.choice is not None]
    judged = [label for label in labels if label.verdict != "skip"]
    tests = [label for label in judged if joined.unit(label) in joined.known]
    unequal = [label for label in chosen if len(set(_lengths(joined, label))) > 1]
    voted = name in joined.model.votes.annotators
    mode, low, high = joined.model.error(name) if voted and chosen else (math.nan,) * 3
    by_chance = statistics.fmean(1 / len(label.order) for label in chosen) if chosen else None
    test = chance_test(joined, name, good_error=good_error)
    if by_chance is not None and test["verdict"] == "random" and high < 1 - by_chance:
        test["verdict"] = "poor"
    return {
        "labels": len(labels),
        **{verdict: verdicts[verdict] for verdict in ("choice", "tie", "both_bad", "skip")},
        "seconds": statistics.median(timed)
        if (timed := [one.seconds for one in labels if one.seconds])
        else None,
        "words_per_second": statistics.median(
            sum(_lengths(joined, one)) / one.seconds for one in labels if one.seconds
        )
        if timed
        else None,
        "error": Interval(mean=mode, low=low, high=high, n=len(joined.choices[name])) if chosen else None,
        "planted": _share([label.choice == joined.known[joined.unit(label)] for label in tests]),
        "consistent": _share(_repetitions(joined, judged)),
        "first": _share([label.choice == label.order[0] for label in chosen]),
        "first_chance": by_chance,
        "longer": _share(
            [_lengths(joined, one)[one.choice or 0] == max(_lengths(joined, one)) for one in unequal]
        ),
        "effects": dict(conditional_logit(_features(joined, [name]), FEATURES)),
        "chance": test,
    }


def chance_test(
    joined: Labels, name: str, *, good_error: float = GOOD_ERROR, significance: float = SIGNIFICANCE
) -> dict[str, Any]:
    """Sequential probability ratio test (Wald, 1945) of an annotator: error rate `good_error` against choices
    at random.

    After each choice, in the order of time, the likelihood ratio good : random of all choices so far is
    updated; the better answer of a unit is known (planted) or has the probability that the other annotators
    give it, and a repeated item is a second choice on the same unit. `verdict`: "random" once the ratio has
    fallen to `significance` (after `decided` items), "good" if it is at least 1 / `significance`, else
    "undecided". For an annotator of error rate `good_error` or less the ratio falls that far, ever, with
    probability at most `significance` (Ville's inequality), as far as the others' probabilities are right.
    "random" includes annotators who are worse than chance.
    """
    support, seen = joined.support(name), defaultdict[str, list[int]](list)
    ratio, lowest, decided = 0.0, 0.0, None
    informative = 0
    for number, label in enumerate(joined.by(name), start=1):
        if label.choice is None:
            continue
        unit = joined.unit(label)
        q = support[unit]
        before, after = seen[unit], [*seen[unit], label.choice]
        step = _evidence(q, after, good_error) - _evidence(q, before, good_error)
        seen[unit] = after
        ratio += step
        informative += abs(step) > 1e-9
        lowest = min(lowest, ratio)
        if decided is None and ratio <= math.log(significance):
            decided = number
    verdict = "random" if decided is not None else "good" if ratio >= -math.log(significance) else "undecided"
    return {
        "verdict": verdict,
        "decided": decided,
        "log_ratio": ratio,
        "lowest": lowest,
        "informative": informative,
    }


def _evidence(q: np.ndarray, choices: Sequence[int], error: float) -> float:
    """log P(choices | good) - log P(choices | random) on one unit, whose answers are the better one with
    probabilities q.
    """
    likelihood = q.copy()
    for choice in choices:
        likelihood = likelihood * np.where(np.arange(len(q)) == choice, 1 - error, error / (len(q) - 1))
    return float(np.log(likelihood.sum())) + len(choices) * math.log(len(q))


def _ratings(joined: Labels) -> list[list[Any]]:
    """Verdicts and chosen indices of each unplanted unit, the first of each annotator."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for label in joined.labels:
        unit = joined.unit(label)
        if label.verdict != "skip" and unit not in joined.known:
            value = label.choice if label.verdict == "choice" else label.verdict
            found[unit].setdefault(label.annotator, value)
    return [list(row.values()) for row in found.values()]


def _repetitions(joined: Labels, labels: Sequence[Label]) -> list[bool]:
    """Whether each repetition got the verdict and choice of the unit's first label."""
    first: dict[str, Label] = {}
    same = []
    for label in labels:
        earlier = first.setdefault(joined.unit(label), label)
        if earlier is not label:
            same.append((label.verdict, label.choice) == (earlier.verdict, earlier.choice))
    return same


def _features(joined: Labels, names: Sequence[str]) -> list[tuple[np.ndarray, int]]:
    """Features (K, 3) of each choice's answers, as in `FEATURES`: log number of words, shown first, and log
    probability that the answer is better by the other annotators and planted answers.
    """
    rows = []
    for name in names:
        support = joined.support(name)
        for label in joined.by(name):
            if label.choice is not None:
                x = np.zeros((len(label.order), len(FEATURES)))
                x[:, 0] = np.log(np.maximum(_lengths(joined, label), 1))
                x[label.order[0], 1] = 1
                x[:, 2] = np.log(np.maximum(support[joined.unit(label)], 0.01))
                rows.append((x, label.choice))
    return rows


def _lengths(joined: Labels, label: Label) -> list[int]:
    """Words of each answer."""
    return [len(text.split()) for text in joined.items[label.item].answers]


def _share(right: Sequence[bool]) -> Interval | None:
    return wilson(sum(right), len(right)) if right else None
