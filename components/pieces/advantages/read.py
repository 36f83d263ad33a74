"""Helper to read rewards from a group, shared by advantages, selectors and prompt samplers. Not a piece."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.types import Group


def rewards_of(group: Group, reward: str | Sequence[str]) -> list[float]:
    """Reward of each trajectory: one column, or the sum of several. `DataError` if one is missing."""
    names = [reward] if isinstance(reward, str) else list(reward)
    for name in names:
        if name not in group.columns:
            raise DataError(
                f"prompt {group.prompt.id!r}: no column {name!r} (available: {sorted(group.columns)}); "
                "add an annotator that writes it"
            )
        if any(value is None for value in group.columns[name]):
            raise DataError(
                f"prompt {group.prompt.id!r}: {name!r} has no value for some trajectories; trajectories "
                "with a failed or skipped "
                "reward must be dropped before advantages are computed, never counted as 0"
            )
    return [float(sum(values)) for values in zip(*(group.columns[name] for name in names), strict=True)]
