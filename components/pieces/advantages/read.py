"""Reading rewards off a group: shared by advantages and selectors, no piece itself."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.types import Group


def rewards_of(group: Group, reward: str | Sequence[str]) -> list[float]:
    """The reward of each trajectory: a column, or the sum of several. One that was not scored is a `DataError`."""
    names = [reward] if isinstance(reward, str) else list(reward)
    for name in names:
        if name not in group.columns:
            raise DataError(f"prompt {group.prompt.id!r}: no column {name!r} (it has {sorted(group.columns)}); annotate it first")
        if any(value is None for value in group.columns[name]):
            raise DataError(f"prompt {group.prompt.id!r}: {name!r} was not scored for every trajectory; a failed or skipped "
                            "reward must leave its group before credit is assigned, never count as 0")
    return [float(sum(values)) for values in zip(*(group.columns[name] for name in names), strict=True)]
