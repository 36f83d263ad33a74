"""Scores of sampled answers by the labels of people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ratchet.components.labels.labels import SCORE, WEIGHT, Item, Label
from ratchet.components.labels.settings import ordinary
from ratchet.components.labels.weights import consensus
from ratchet.components.types import Group


def scored(groups: Sequence[Group], items: Iterable[Item], labels: Iterable[Label]) -> list[Group]:
    """The groups with the answers that were judged, each different text once. Columns: `people`, the mean
    over the labels of an answer (1 if it was chosen, 0 if another was or both are bad, 0.5 for a tie);
    `label_weight`, the mean weight of its comparisons (`pair_weights`); `annotator`, `seconds`, `reason`:
    pseudonyms, mean time and reasons of the labels of an answer. The prompt's `meta` has the list
    `annotators`. Labels of planted and repeated items are left out.
    """
    items, labels = list(items), list(labels)
    known, weights = {item.id: item for item in items}, pair_weights(items, labels)
    found: dict[tuple[str, str], list[tuple[float, Label]]] = defaultdict(list)
    for label in labels:
        item = known.get(label.item)
        if item is None or not ordinary(item) or label.verdict == "skip":
            continue
        for number, answer in enumerate(item.answers):
            value = 0.5 if label.verdict == "tie" else float(number == label.choice)
            found[item.prompt_id, answer].append((value, label))
    made = []
    for group in groups:
        places = {one.text: i for i, one in reversed(list(enumerate(group.trajectories)))}
        judged = sorted(i for text, i in places.items() if (group.prompt.id, text) in found)
        if not judged:
            continue
        judgements = [found[group.prompt.id, group.trajectories[i].text] for i in judged]
        names = sorted({label.annotator for one in judgements for _, label in one})
        prompt = replace(group.prompt, meta={**group.prompt.meta, "annotators": names})
        kept = replace(group.take(judged), prompt=prompt)
        columns = {
            SCORE: [sum(value for value, _ in one) / len(one) for one in judgements],
            WEIGHT: [sum(weights.get(label.item, 0.0) for _, label in one) / len(one) for one in judgements],
            "annotator": [",".join(sorted({label.annotator for _, label in one})) for one in judgements],
            "seconds": [sum(label.seconds for _, label in one) / len(one) for one in judgements],
            "reason": [" / ".join(label.reason for _, label in one if label.reason) for one in judgements],
        }
        made.append(kept.extended(columns))
    return made


def pair_weights(items: Sequence[Item], labels: Sequence[Label]) -> dict[str, float]:
    """Weight of each comparison by its id, with mean 1 over those with a choice: that of `Consensus`, so that
    comparisons on which reliable annotators agree count most.
    """
    known = {item.id for item in items}
    weights = {
        one.item: one.weight for one in consensus(items, [label for label in labels if label.item in known])
    }
    mean = sum(weights.values()) / len(weights) if weights else 0.0
    return {item: weight / mean for item, weight in weights.items()} if mean else {}
