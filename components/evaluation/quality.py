"""Quality of answers beside the reward, and the reward by kind of prompt: means with intervals over prompts, arm by arm.

Every argument that holds scores is Ragged: per prompt a list with one number an answer. Arms share prompts and their order, so
differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.evaluation.bootstrap import Interval, difference, mean_interval
from ratchet.components.evaluation.diversity import distinct_n, distinct_n_interval
from ratchet.components.types import Group

Ragged = Sequence[Sequence[float]]


def flattened(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """`name` -> interval as flat metrics: `name.mean`, `name.low`, `name.high`, `name.n`."""
    return {f"{name}.{end}": value for name, ends in intervals.items() for end, value in ends.items()}


def quality(measured: Mapping[str, Mapping[str, Ragged]]) -> dict[str, dict[str, Interval]]:
    """Measure -> arm -> mean over prompts with its interval, from arm -> measure -> scores."""
    names = next(iter(measured.values()), {})
    return {name: {arm: mean_interval(means(rows[name])) for arm, rows in measured.items()} for name in names}


def quality_against(measured: Mapping[str, Mapping[str, Ragged]], arm: str, other: str) -> dict[str, Interval]:
    """Measure -> paired difference `arm` - `other` with its interval."""
    return {name: difference(means(rows), means(measured[other][name])) for name, rows in measured[arm].items()}


def diversity_against(answers: Mapping[str, Sequence[Group]], arm: str, other: str) -> Interval:
    """Distinct word pairs of `arm` over those of `other`, both on as much text."""
    mine, theirs = ([[t.text for t in group.trajectories] for group in answers[name]] for name in (arm, other))
    return distinct_n_interval(mine, theirs, 2)


def distinct_pairs(groups: Sequence[Group]) -> float:
    """Share of distinct word pairs among all of an arm's answers."""
    return distinct_n([t.text for group in groups for t in group.trajectories], 2)


def slices(groups: Sequence[Group], scores: Mapping[str, Ragged], by: Sequence[str]) -> dict[str, dict[str, dict[str, Interval]]]:
    """Name in `by` -> its value in a prompt's meta -> arm -> mean score of these prompts with its interval. A name with dots
    (`instruction.family`) leads into nested mappings; prompts without it are left out."""
    found: dict[str, dict[str, dict[str, Interval]]] = {}
    for name in by:
        places: dict[str, list[int]] = {}
        for i, group in enumerate(groups):
            if (value := tag(group, name)) is not None:
                places.setdefault(str(value), []).append(i)
        found[name] = {value: {arm: mean_interval([means(rows)[i] for i in chosen]) for arm, rows in scores.items()}
                       for value, chosen in sorted(places.items())}
    return found


def tag(group: Group, name: str) -> Any:
    """The value of a dotted name in a prompt's meta; None where there is none."""
    value: Any = group.prompt.meta
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def means(rows: Ragged) -> list[float]:
    """The mean of each prompt's answers."""
    return [sum(row) / len(row) for row in rows]
