"""Per-step values of a trajectory in an array, with the behaviour of a list."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from ratchet.components.types import Group


@final
class StepValues(Sequence[Any]):
    """(T,) numbers or booleans, one per step, such as tokens, a mask or log-probs. Items, slices, equality
    and `repr` are those of the list of the values, in 1 to 8 bytes a value rather than 8 to 40.
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def tolist(self) -> list[Any]:
        """The values as Python numbers."""
        return self._array.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array[index].tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StepValues):
            other = other.tolist()
        return self.tolist() == other if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return repr(self.tolist())


def packed(values: Any) -> Any:
    """A list of numbers of one type as `StepValues`, floats as float32 if that loses nothing; any other value
    as it is.
    """
    if not isinstance(values, (list, tuple)) or len(kinds := {type(value) for value in values}) != 1:
        return values
    if not kinds <= {bool, int, float}:
        return values
    array = np.array(values)
    small = array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))
    return StepValues(small if (small == array).all() else array) if array.dtype.kind in "bif" else values


def compact(group: Group) -> Group:
    """The group with its numbers per step in arrays."""
    paths = [
        dataclasses.replace(
            t,
            inputs={name: packed(values) for name, values in t.inputs.items()},
            mask=packed(t.mask),
            logprobs=packed(t.logprobs),
        )
        for t in group.trajectories
    ]
    columns = {name: [packed(value) for value in values] for name, values in group.columns.items()}
    return Group(group.prompt, tuple(paths), columns)
