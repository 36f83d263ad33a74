"""Sequences of groups that are built when they are used: those of files larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final, overload

import pyarrow as pa

from ratchet.components.data.group_rows import compact_rows, group_of_rows
from ratchet.components.data.step_values import packed
from ratchet.components.types import Columns, Group

PART = 128
"""Groups that an annotator scores at a time, if there are more than fit in memory."""


class Lazy(Sequence[Group]):
    """Groups that are built each time that they are used; `places` says of what. Equal to a list of equal
    groups.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, places: Sequence[Any]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Lazy, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))


@final
class Groups(Lazy):
    """The groups of a file too large for memory. A group is built from the mapped rows each time that it is
    used; its lists of numbers are `StepValues`. Slices are `Groups` too.
    """

    def __init__(self, rows: pa.Table, places: Sequence[tuple[int, int]]) -> None:
        super().__init__(places)
        self._rows = rows

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Groups: ...
    def __getitem__(self, index: int | slice) -> Group | Groups:
        if isinstance(index, slice):
            return Groups(self._rows, self._places[index])
        start, stop = self._places[index]
        return group_of_rows(compact_rows(self._rows.slice(start, stop - start)))


@final
class Mapped(Lazy):
    """`function(i, groups[i])` for each i of `places`, computed each time that a group is used."""

    def __init__(
        self, groups: Sequence[Group], function: Callable[[int, Group], Group], places: Sequence[int]
    ) -> None:
        super().__init__(places)
        self._groups, self._function = groups, function

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Mapped: ...
    def __getitem__(self, index: int | slice) -> Group | Mapped:
        if isinstance(index, slice):
            return Mapped(self._groups, self._function, self._places[index])
        place = self._places[index]
        return self._function(place, self._groups[place])


def is_lazy(groups: Sequence[Group]) -> bool:
    """Whether the groups are built when they are used, since all at once may not fit in memory."""
    return isinstance(groups, Lazy)


def listed(groups: Sequence[Group]) -> Sequence[Group]:
    """A new list of the groups, or, if they are lazy, the groups as they are."""
    return groups if is_lazy(groups) else list(groups)


def each(
    groups: Sequence[Group], function: Callable[[int, Group], Group], places: Sequence[int] | None = None
) -> Sequence[Group]:
    """`function(i, groups[i])` for each i of `places` (default: all): a list, or lazy if `groups` are."""
    places = range(len(groups)) if places is None else places
    if is_lazy(groups):
        return Mapped(groups, function, places)
    return [function(i, groups[i]) for i in places]


def taken(groups: Sequence[Group], rows: Sequence[Sequence[int]]) -> Sequence[Group]:
    """The trajectories `rows[i]` of each group i, without the groups that keep none."""
    return each(groups, lambda i, group: group.take(rows[i]), [i for i, own in enumerate(rows) if own])


def annotated_in_parts(
    groups: Sequence[Group], annotate: Callable[[Sequence[Group]], tuple[Columns, dict[str, str]]]
) -> tuple[Columns, dict[str, str]]:
    """What `annotate` gives for all groups, columns and weights digests, from `PART` groups at a time; its
    numbers per step are kept in arrays.
    """
    columns: dict[str, list[Any]] = {}
    used: dict[str, str] = {}
    for first in range(0, len(groups), PART):
        written, models = annotate(list(groups[first : first + PART]))
        used |= models
        for name, values in written.items():
            columns.setdefault(name, []).extend([packed(value) for value in row] for row in values)
    return columns, used
