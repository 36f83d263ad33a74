"""Which reward columns annotators write, and which of them a fit optimises, by the recipe alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import describe


def reward_columns(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reward columns that the annotators write, in order."""
    return [
        name
        for spec in specs
        for name in sorted(describe("annotate", spec["name"]).named("writes", spec))
        if name.startswith("reward.") and not name.endswith(".status")
    ]


def optimised_rewards(
    annotate: Sequence[Mapping[str, Any]],
    select: Sequence[Mapping[str, Any]],
    updates: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[str]:
    """The reward columns that training optimises: those read by a selector, an advantage estimator, or as the
    `weight_column` or `where` of an objective; the last one written if none is.
    """
    shapers = [spec for spec in annotate if not reward_columns([spec])]
    read = {
        column
        for slot, specs in (("select", select), ("annotate", shapers))
        for spec in specs
        for column in describe(slot, spec["name"]).named("reads", spec)
    }
    own = [spec for objectives in updates.values() for spec in objectives]
    read |= {spec.get(key) for spec in own for key in ("weight_column", "where")}
    written = reward_columns(annotate)
    return [column for column in written if column in read] or written[-1:]
