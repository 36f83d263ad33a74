"""What labels say together: the most probable better answer of each item, and weights for training."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.quality import Labels
from ratchet.components.labels.settings import ordinary


@dataclass(frozen=True)
class Consensus:
    """What the annotators of a unit say together.

    `chosen`: the most probable better answer. `probability`: its posterior. `log_odds`: log p / (1 - p).
    `weight`: (K p - 1) / (K - 1), times the share of choices among choices, ties and "both bad". For pairs
    2 p - 1 is the size of the expected gradient of a logistic preference loss of a label that is right with
    probability p, at equal scores; the factor for ties is a convention of this project.
    """

    item: str
    chosen: int
    probability: float
    log_odds: float
    weight: float
    choices: int
    ties: int


def consensus(items: Sequence[Item], labels: Sequence[Label], *, seed: int = 0) -> list[Consensus]:
    """One `Consensus` per unplanted unit with at least one choice, in the order of the items."""
    joined = Labels(items, labels, seed=seed)
    opinions = Counter((joined.unit(label), label.verdict) for label in joined.labels)
    made = []
    for item in items:
        if item.id in joined.known or item.id not in joined.position:
            continue
        index, answers = joined.position[item.id], len(item.answers)
        posterior = joined.model.posterior[index, :answers]
        best = int(posterior.argmax())
        p = float(min(posterior[best], 1 - 1e-9))
        chosen, tied = opinions[item.id, "choice"], opinions[item.id, "tie"] + opinions[item.id, "both_bad"]
        weight = max(0.0, (answers * p - 1) / (answers - 1)) * chosen / (chosen + tied)
        made.append(Consensus(item.id, best, p, math.log(p / (1 - p)), weight, chosen, tied))
    return made


def label_weights(items: Sequence[Item], labels: Sequence[Label], *, seed: int = 0) -> list[float]:
    """A weight per label, in their order, for training on every label as a pair of its own:
    (K p - 1) / (K - 1) with the posterior p that its choice is the better answer, divided by the mean over
    the choices on ordinary items (neither planted nor repeated); 0 for a choice that is less likely than
    chance and for a label without a choice. `consensus` has one weight a unit.
    """
    joined = Labels(items, labels, seed=seed)
    made = []
    for label in labels:
        if label.choice is None:
            made.append(0.0)
            continue
        index = joined.position[joined.unit(label)]
        answers = int(joined.model.votes.options[index])
        p = float(joined.model.posterior[index, label.choice])
        made.append(max(0.0, (answers * p - 1) / (answers - 1)))
    trained = [
        weight
        for weight, label in zip(made, labels, strict=True)
        if label.choice is not None and ordinary(joined.items[label.item])
    ]
    mean = statistics.fmean(trained) if trained else 0.0
    return [weight / mean for weight in made] if mean else made
