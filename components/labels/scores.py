"""Scores of sampled answers by the labels of people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ratchet.components.labels.labels import Item, Label
from ratchet.components.types import Group

SCORE = "people"
"""Column of the scores, which annotators such as `rewards.people` read."""


def scored(groups: Sequence[Group], items: Iterable[Item], labels: Iterable[Label]) -> list[Group]:
    """The groups with the answers that were judged, each different text once. Columns: `people`, the mean
    over the labels of an answer (1 if it was chosen, 0 if another was or both are bad, 0.5 for a tie), and
    `annotator`, `seconds`, `reason`: pseudonyms, mean time and reasons of the labels of an answer. The
    prompt's `meta` has the list `annotators`.
    """
    known = {item.id: item for item in items}
    found: dict[tuple[str, str], list[tuple[float, Label]]] = defaultdict(list)
    for label in labels:
        item = known.get(label.item)
        if item is None or label.verdict == "skip":
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
        mine = [found[group.prompt.id, group.trajectories[i].text] for i in judged]
        names = sorted({label.annotator for one in mine for _, label in one})
        prompt = replace(group.prompt, meta={**group.prompt.meta, "annotators": names})
        kept = replace(group.take(judged), prompt=prompt)
        columns = {
            SCORE: [sum(value for value, _ in one) / len(one) for one in mine],
            "annotator": [",".join(sorted({label.annotator for _, label in one})) for one in mine],
            "seconds": [sum(label.seconds for _, label in one) / len(one) for one in mine],
            "reason": [" / ".join(label.reason for _, label in one if label.reason) for one in mine],
        }
        made.append(kept.extended(columns))
    return made
