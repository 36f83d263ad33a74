"""Size of a data set."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """Size of a curated data set: number of groups (nan: unknown), the mean over groups of the longest
    trajectory's length in tokens, and the greatest of these lengths (0: unknown, the mean counts).
    """

    groups: float
    tokens: float
    longest: float = 0.0

    @property
    def known(self) -> float:
        """The number of groups, 0 while it is unknown."""
        return 0 if math.isnan(self.groups) else self.groups

    def __add__(self, other: Split) -> Split:
        """Both data sets, with the mean length of all groups."""
        groups, longest = self.groups + other.groups, max(self.longest, other.longest)
        if math.isnan(groups):
            return Split(groups, max(self.tokens, other.tokens), longest)
        mean = (self.groups * self.tokens + other.groups * other.tokens) / max(groups, 1)
        return Split(groups, mean, longest)
