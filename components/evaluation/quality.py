"""Quality measures of each arm beside the reward, and rewards by prompt tag: means with intervals over
prompts.

Scores are Ragged: per prompt a list with one number per answer. Arms share the prompts and their order, so
differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.evaluation.bootstrap import Interval, difference, mean_interval
from ratchet.components.evaluation.diversity import distinct_n_interval
from ratchet.components.types import Group

Ragged = Sequence[Sequence[float]]


def flattened(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """`name` -> interval as flat metrics: `name.mean`, `name.low`, `name.high`, `name.n`."""
    return {f"{name}.{end}": value for name, ends in intervals.items() for end, value in ends.items()}


def quality(measured: Mapping[str, Mapping[str, Ragged]]) -> dict[str, dict[str, Interval]]:
    """Measure -> arm -> interval of the mean over prompts, from arm -> measure -> scores."""
    names = next(iter(measured.values()), {})
    return {name: {arm: mean_interval(means(rows[name])) for arm, rows in measured.items()} for name in names}


def quality_against(
    measured: Mapping[str, Mapping[str, Ragged]], arm: str, other: str
) -> dict[str, Interval]:
    """Measure -> interval of the paired difference `arm` - `other`."""
    return {
        name: difference(means(rows), means(measured[other][name])) for name, rows in measured[arm].items()
    }


def diversity_against(answers: Mapping[str, Sequence[Group]], arm: str, other: str) -> Interval:
    """Ratio of distinct word pairs of `arm` to `other`, on the same amount of text."""
    mine, theirs = (
        [[t.text for t in group.trajectories] for group in answers[name]] for name in (arm, other)
    )
    return distinct_n_interval(mine, theirs, 2)


def slices(
    groups: Sequence[Group], scores: Mapping[str, Ragged], by: Sequence[str]
) -> dict[str, dict[str, dict[str, Interval]]]:
    """Tag name in `by` -> tag value in the prompt's meta -> arm -> interval of the mean score of these
    prompts. Dotted names (`instruction.family`) address nested mappings; prompts without the tag are left
    out.
    """
    found: dict[str, dict[str, dict[str, Interval]]] = {}
    for name in by:
        places: dict[str, list[int]] = {}
        for i, group in enumerate(groups):
            if (value := tag(group, name)) is not None:
                places.setdefault(str(value), []).append(i)
        found[name] = {
            value: {arm: mean_interval([means(rows)[i] for i in chosen]) for arm, rows in scores.items()}
            for value, chosen in sorted(places.items())
        }
    return found


def tag(group: Group, name: str) -> Any:
    """Value of a dotted name in the prompt's meta, or None."""
    value: Any = group.prompt.meta
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def means(rows: Ragged) -> list[float]:
    """Mean over each prompt's answers."""
    return [sum(row) / len(row) for row in rows]
